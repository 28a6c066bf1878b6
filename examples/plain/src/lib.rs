//! Nothing: the package is made of examples, and `cargo package` demands a library or a program.
