//! Every limit of the server: name, default, unit, reason.
