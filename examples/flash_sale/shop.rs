//! The shop's data in Redis, in plain keys that no lock protects, and the books kept from them.

use std::collections::BTreeMap;

use redis::{Commands, Connection, RedisResult};

use super::Result;

/// Removes the shop's keys even if the example is killed.
const TTL_SECONDS: u64 = 600;

/// The stock, and a list with one entry per sale.
pub(crate) struct Shop {
    redis: Connection,
    sale: String,
}

impl Shop {
    pub(crate) fn open(url: &str, sale: &str) -> RedisResult<Self> {
        let redis = redis::Client::open(url)?.get_connection()?;
        Ok(Self { redis, sale: sale.to_owned() })
    }

    pub(crate) fn sale(&self) -> &str {
        &self.sale
    }

    pub(crate) fn stock(&mut self) -> RedisResult<usize> {
        self.redis.get(self.key("stock"))
    }

    pub(crate) fn restock(&mut self, items: usize) -> RedisResult<()> {
        self.redis.set_ex(self.key("stock"), items, TTL_SECONDS)
    }

    /// Sells the last of `left` items. Another seller that has read the same `left` sells it, too.
    pub(crate) fn sell(&mut self, left: usize, seller: &str) -> RedisResult<()> {
        self.restock(left - 1)?;
        let sold = self.key("sold");
        let _: usize = self.redis.rpush(&sold, format!("{left} {seller}"))?;
        self.redis.expire(&sold, TTL_SECONDS.cast_signed())
    }

    pub(crate) fn sold(&mut self) -> RedisResult<usize> {
        self.redis.llen(self.key("sold"))
    }

    pub(crate) fn clear(&mut self) -> RedisResult<()> {
        self.redis.del(&[self.key("stock"), self.key("sold")])
    }

    fn sales(&mut self) -> RedisResult<Vec<String>> {
        self.redis.lrange(self.key("sold"), 0, -1)
    }

    fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.sale)
    }
}

/// How many items each process sold, and how often each item was sold.
pub(crate) struct Books {
    stock: usize,
    left: usize,
    times_sold: BTreeMap<usize, usize>,
    sold_by: BTreeMap<String, usize>,
}

impl Books {
    pub(crate) fn read(shop: &mut Shop, stock: usize) -> Result<Self> {
        let mut books = Self {
            stock,
            left: shop.stock()?,
            times_sold: BTreeMap::new(),
            sold_by: BTreeMap::new(),
        };
        for sale in shop.sales()? {
            let (item, seller) = sale.split_once(' ').ok_or("a sale without a seller")?;
            *books.times_sold.entry(item.parse()?).or_default() += 1;
            *books.sold_by.entry(seller.to_owned()).or_default() += 1;
        }
        Ok(books)
    }

    /// Checks that every item of the stock was sold exactly once.
    pub(crate) fn check(&self) -> Result<()> {
        for (seller, sold) in &self.sold_by {
            println!("process {seller} sold {sold}");
        }
        let Self { stock, left, times_sold, .. } = self;
        let sold: usize = times_sold.values().sum();
        let twice = times_sold.values().filter(|times| **times > 1).count();
        let never = (1..=*stock).filter(|item| !times_sold.contains_key(item)).count();
        println!("sold {sold} of {stock}: {left} left, {twice} sold more than once, {never} never");

        if sold > *stock || twice > 0 {
            return Err(format!("OVERSOLD: {sold} sales of {stock} items").into());
        }
        if *left > 0 || never > 0 {
            return Err("sales were lost".into());
        }
        println!("the books are correct: nothing oversold, nothing lost");
        Ok(())
    }
}
