//! Code that locks, and tests of it that need no server.
//!
//! See "Tests of your own code" in `docs/cookbook.md`, which provokes each error once.
//!
//! `cargo run --example testing` runs the code, `cargo test --example testing` the tests.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Client, Error, Guard};

/// The stock of a shop.
struct Stock(Mutex<u32>);

#[derive(Debug, PartialEq)]
enum Sale {
    Sold {
        left: u32,
    },
    SoldOut,
    /// Another process is selling at this moment.
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
    use leasehold::MemoryServer;

    /// Returns a server, two clients of it as in two processes, and one item.
    fn shop() -> Result<(MemoryServer, Client, Client, Stock), Error> {
        let server = MemoryServer::new();
        let open = || {
            let builder = Client::builder().io_timeout(Duration::from_millis(100));
            builder.open_memory(&server)
        };
        let (one, other) = (open()?, open()?);
        Ok((server, one, other, Stock(Mutex::new(1))))
    }

    #[test]
    fn the_last_item_is_sold_once() -> Result<(), Error> {
        let (_, client, _, stock) = shop()?;
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        assert_eq!(stock.sell(&client, |_| ())?, Sale::SoldOut);
        Ok(())
    }

    #[test]
    fn a_sale_by_another_process_is_busy() -> Result<(), Error> {
        let (_, client, other, stock) = shop()?;
        let sale = other.lock("stock")?;
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Busy);
        sale.unlock()?;
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        Ok(())
    }

    #[test]
    fn nothing_is_sold_if_the_lock_is_lost_meanwhile() -> Result<(), Error> {
        let (server, client, _, stock) = shop()?;
        let lose = |guard: &Guard| {
            assert!(guard.is_held());
            assert!(server.end_hold("stock"));
        };
        assert!(matches!(stock.sell(&client, lose), Err(Error::Lost { .. })));
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        Ok(())
    }

    #[test]
    fn an_outage_is_not_busy() -> Result<(), Error> {
        let (server, client, _, stock) = shop()?;
        server.set_down(true);
        assert!(matches!(stock.sell(&client, |_| ()), Err(Error::Unavailable { .. })));
        server.set_down(false);
        assert_eq!(stock.sell(&client, |_| ())?, Sale::Sold { left: 0 });
        Ok(())
    }

    #[test]
    fn a_slow_server_sells_nothing_twice() -> Result<(), Error> {
        let (server, client, other, stock) = shop()?;
        server.set_delay(Duration::MAX);
        assert!(matches!(stock.sell(&client, |_| ()), Err(Error::Unavailable { .. })));
        server.set_delay(Duration::ZERO);
        // Whatever the failed call left at the server is cleaned up.
        other.lock("stock")?.unlock()?;
        assert_eq!(stock.sell(&other, |_| ())?, Sale::Sold { left: 0 });
        Ok(())
    }
}
