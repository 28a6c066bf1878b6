//! A [`Builder`] from a configuration file.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use crate::client::Builder;
use crate::config::Config;
use crate::config::options;

/// The map has a `url` and the settings of [`Builder::from_url`], by the same names and with the
/// same texts. Numbers may be numbers: those of durations are in seconds. `true` and `false` may be
/// such, and a missing value is `none`. Settings beside the `url` replace those in it, wherever
/// they stand. Others are an error, and so is what makes no sense.
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
        deserializer.deserialize_map(BuilderVisitor)
    }
}

struct BuilderVisitor;

impl<'de> Visitor<'de> for BuilderVisitor {
    type Value = Builder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Builder, A::Error> {
        let (mut url, mut settings) = (None, Vec::new());
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
        options::apply(&mut builder.config, settings).map_err(Error::custom)?;
        Ok(builder)
    }
}

/// The value of a setting. What is wrong with it is found here, so that the error has its place.
struct Setting<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Setting<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let (Self(name), Text(text)) = (self, Text::deserialize(deserializer)?);
        let checked = match name {
            "url" => Builder::from_url(&text).map(drop),
            name => options::apply(&mut Config::default(), [(name.to_owned(), text.clone())]),
        };
        checked.map_err(Error::custom)?;
        Ok(text)
    }
}

/// A value as the text that it would be in a URL.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, `true` or `false`")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Text, E> {
        Ok(Text(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Text, E> {
        Ok(Text(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Text, E> {
        Ok(Text("none".into()))
    }
}
