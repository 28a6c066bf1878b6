//! Code that locks, and tests of it that need no server.
//!
//! Recipe: let your code take a `&Client`, and give it `Client::in_memory()` in tests. It locks,
//! waits, hands off and loses its holds as a client of Redis does. Each is a world of its own, so
//! tests that run at the same time do not meet.
//!
//! Trap: what is only in memory never times out or breaks. For a test of an outage, a `lazy` client
//! of a port where nothing listens fails as one does whose Redis is away.
//!
//! `cargo run --example testing` runs the code, `cargo test --example testing` the tests.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Client, Error, Guard};

/// What a shop has in stock.
struct Stock(Mutex<u32>);

#[derive(Debug, PartialEq)]
enum Sale {
    Sold {
        left: u32,
    },
    SoldOut,
    /// Another process sells at this moment.
    Busy,
}

impl Stock {
    /// Sells one item, unless the payment takes so long that the lock is lost.
    fn sell(&self, client: &Client, pay: impl FnOnce(&Guard)) -> Result<Sale, Error> {
        let Some(guard) = client.try_lock_for("stock", Duration::from_millis(200))? else {
            return Ok(Sale::Busy);
        };
        let left = *self.0.lock().expect("no thread panics");
        if left == 0 {
            return Ok(Sale::SoldOut);
        }
        pay(&guard);
        guard.verify()?;
        *self.0.lock().expect("no thread panics") = left - 1;
        Ok(Sale::Sold { left: left - 1 })
    }
}

fn main() -> Result<(), Error> {
    let client = Client::in_memory(); // in production: Client::open(url)?
    let stock = Stock(Mutex::new(2));
    let sales = [(); 3].map(|()| stock.sell(&client, |_| println!("a payment arrives")));
    for sale in sales {
        println!("{:?}", sale?);
    }
    assert_eq!(stock.sell(&client, |_| ())?, Sale::SoldOut);
    println!("its tests: cargo test --example testing");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_item_is_sold_once() -> Result<(), Error> {
        let (client, stock) = (Client::in_memory(), Stock(Mutex::new(1)));
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        assert_eq!(stock.sell(&client, |_| ())?, Sale::SoldOut);
        Ok(())
    }

    #[test]
    fn a_sale_by_another_process_is_busy() -> Result<(), Error> {
        let (client, stock) = (Client::in_memory(), Stock(Mutex::new(1)));
        let other = client.lock_owned("stock")?; // belongs to no thread, as the lock of a process
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Busy);
        other.unlock()?;
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        Ok(())
    }

    #[test]
    fn nothing_is_sold_if_the_lock_is_lost_meanwhile() {
        let (client, stock) = (Client::in_memory(), Stock(Mutex::new(1)));
        let lose = |guard: &Guard| {
            assert!(guard.is_held());
            client.mutex("stock").force_unlock().expect("memory is there");
        };
        assert!(matches!(stock.sell(&client, lose), Err(Error::Lost { .. })));
        assert_eq!(stock.sell(&client, |_| ()).expect("memory is there"), Sale::Sold { left: 0 });
    }

    #[test]
    fn an_outage_is_not_busy() -> Result<(), Error> {
        let away = Client::builder().lazy(true).open("redis://127.0.0.1:1/")?;
        let stock = Stock(Mutex::new(1));
        assert!(matches!(stock.sell(&away, |_| ()), Err(Error::Unavailable { .. })));
        Ok(())
    }
}
