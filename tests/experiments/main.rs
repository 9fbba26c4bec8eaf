//! `sandstorm bench`. A program of its own: its servers poll, and leave others little of the processors.

mod bench;
