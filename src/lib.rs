//! Placeholder guide.

mod builder;
mod client;
mod clock;
mod config;
mod error;
mod event;
mod guard;
mod hold;
mod mutex;
mod store;

pub use builder::Builder;
pub use client::Client;
pub use config::Durability;
pub use error::{Error, Result};
pub use event::Event;
pub use guard::Guard;
pub use mutex::Mutex;
pub use store::Holder;
