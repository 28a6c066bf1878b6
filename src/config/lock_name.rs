//! Which names locks can have.

use crate::error::{Error, Result};

/// The longest name, and the longest prefix.
pub(crate) const NAME_MAX: usize = 64 * 1024;

/// The prefix of the keys and channels that leasehold creates for its own use.
pub(crate) const RESERVED: &str = "leasehold:";

/// Returns an error if no lock can have this name.
///
/// The keys of a lock and of its companions must share a hash slot. Redis hashes the part
/// between the first `{` and the first `}` after it, or the whole key if that part is empty or
/// missing. A name of the second kind is put into braces of its own, which works only if it
/// contains no `}` (see `store::keys`).
pub(crate) fn check(prefix: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::invalid("name", format_args!("must be 1 to {NAME_MAX} bytes")));
    }
    let reserved = if prefix.is_empty() {
        name.starts_with(RESERVED)
    } else {
        let start = prefix.bytes().chain(name.bytes()).take(RESERVED.len());
        start.eq(RESERVED.bytes())
    };
    if reserved {
        return Err(Error::invalid(
            "name",
            format_args!("must not begin with {RESERVED:?}, prefix included"),
        ));
    }
    if !name.contains(['{', '}']) && !prefix.contains(['{', '}']) {
        return Ok(());
    }
    let key = format!("{prefix}{name}");
    if !slot_is_safe(&key) {
        return Err(Error::invalid(
            "name",
            "must not contain `}`, prefix included, unless it has a hash tag such as `{tag}`",
        ));
    }
    if is_only_hash_tag(&key) {
        return Err(Error::invalid(
            "name",
            "must not be nothing but a hash tag, prefix included: `{x}` has the keys of `x`",
        ));
    }
    Ok(())
}

/// Returns `true` if the companion keys of the name without its braces would be the same.
fn is_only_hash_tag(key: &str) -> bool {
    key.starts_with('{') && key.find('}') == Some(key.len() - 1)
}

fn slot_is_safe(key: &str) -> bool {
    has_hash_tag(key) || !key.contains('}')
}

/// Returns `true` if Redis hashes only the part of this key that is in braces.
pub(crate) fn has_hash_tag(key: &str) -> bool {
    key.split_once('{').and_then(|(_, rest)| rest.find('}')).is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_break_the_slot_rule_are_refused() {
        for good in ["a", "{a}:b", "x{a}b}", "a{b", "a{b}{}", " ", "🐉"] {
            check("", good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for bad in ["", "{a}", "{{a}", "a}", "}", "{}", "{}{a}", "}{", "a{}b", "leasehold:x"] {
            assert!(check("", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_judged_with_its_prefix() {
        assert!(check("lease", "hold:x").is_err());
        assert!(check("leasehold", "x").is_ok());
        assert!(check("{shop}", "a}").is_ok());
        assert!(check("}", "a").is_err());
        assert!(check("p", "leasehold:x").is_ok());
        for good in ["leasehold:x", "{x}", "{{x}", "a{b}"] {
            check("lock:", good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for bad in ["", "}", "a}", "{}", "{}{a}", "}{"] {
            assert!(check("lock:", bad).is_err(), "{bad:?}");
        }
    }
}
