//! Tests of the repository itself: its folders, its sources, its pages. No server runs here.

mod arrows;
mod metadata;
mod tidy;
mod wire_doc;
