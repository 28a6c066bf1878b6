//! A [`Builder`] from a configuration file.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Unexpected, Visitor,
};

use crate::client::builder::Builder;
use crate::config::Config;
use crate::config::url::apply;

/// Deserializes a map with a `url` and the settings of [`Builder::from_url`], with the same names
/// and values. Numbers and booleans are allowed: durations are then in seconds, and `null` is
/// `none`. These settings replace those in the `url`, in any order. An unknown setting or an
/// invalid value is an error.
///
/// Requires the feature `serde`.
///
/// ```no_run
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     locks: leasehold::Builder,
/// }
///
/// let file = r#"{
///     "locks": {
///         "url": "redis+cluster://10.0.0.1,10.0.0.2",
///         "lease": "20s",
///         "backoff": "5ms..500ms",
///         "pool_size": 4,
///         "reentrant": false
///     }
/// }"#;
/// let settings: Settings = serde_json::from_str(file)?;
/// let client = settings.locks.label("worker 7").build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<'de> Deserialize<'de> for Builder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // If asked for a map but given a URL, a format would quote the URL in its error.
        deserializer.deserialize_any(BuilderVisitor)
    }
}

struct BuilderVisitor;

impl<'de> Visitor<'de> for BuilderVisitor {
    type Value = Builder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Builder, E> {
        Err(E::invalid_type(Unexpected::Other("a text"), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Builder, A::Error> {
        let mut url = None;
        let mut settings = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let text = map.next_value_seed(Setting(&name))?;
            if name != "url" {
                settings.push((name, text));
            } else if url.replace(text).is_some() {
                return Err(Error::duplicate_field("url"));
            }
        }
        let mut builder = match url {
            None => Builder::default(),
            Some(url) => Builder::from_url(&url).map_err(Error::custom)?,
        };
        apply(&mut builder.config, settings).map_err(Error::custom)?;
        Ok(builder)
    }
}

/// The value of a setting, as it would be in a URL. It is checked here, so that the error points
/// into the file.
#[derive(Clone, Copy)]
struct Setting<'a>(&'a str);

impl Setting<'_> {
    fn checked<E: Error>(self, value: &impl ToString) -> Result<String, E> {
        let text = value.to_string();
        let checked = match self.0 {
            "url" => Builder::from_url(&text).map(drop),
            name => apply(&mut Config::default(), [(name.to_owned(), text.clone())]),
        };
        checked.map(|()| text).map_err(Error::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Setting<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Defines methods of the visitor that take a value as its text in a URL.
macro_rules! visit {
    ($($method:ident: $value:ty),*) => {
        $(fn $method<E: Error>(self, value: $value) -> Result<String, E> {
            self.checked(&value)
        })*
    };
}

impl Visitor<'_> for Setting<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, `true` or `false`")
    }

    visit! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        self.checked(&"none")
    }
}
