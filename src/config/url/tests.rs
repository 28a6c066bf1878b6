//! What URLs mean, and which of them are rejected.

use super::*;

fn parsed(url: &str) -> (Vec<String>, String, Options) {
    let (deployment, options) = parse(url).expect("a good URL");
    let (urls, kind) = match deployment {
        Deployment::Cluster { seeds } => (seeds, "cluster".into()),
        Deployment::Redlock { urls } => (urls, "redlock".into()),
        Deployment::Sentinel { urls, master } => (urls, master),
        Deployment::Server { url } => (vec![url], "server".into()),
    };
    (urls, kind, options)
}

fn assert_parsed(url: &str, urls: &[&str], kind: &str, options: &[(&str, &str)]) {
    let (found, found_kind, found_options) = parsed(url);
    assert_eq!((found, &*found_kind), (urls.iter().map(ToString::to_string).collect(), kind));
    let options = options.iter().map(|(name, text)| (name.to_string(), text.to_string()));
    assert_eq!(found_options, options.collect::<Vec<_>>());
}

#[test]
fn settings_are_taken_out_of_the_query() {
    assert_parsed("redis://h", &["redis://h"], "server", &[]);
    let settings = [("lease", "20s"), ("prefix", "app:"), ("pool", "4")];
    let url = "redis://u:p%40@h:1/2?lease=20s&prefix=app:&pool=4";
    assert_parsed(url, &["redis://u:p%40@h:1/2"], "server", &settings);
    let url = "rediss://h/?client_name=a%26b&wait=1&protocol=resp3#insecure";
    let rest = "rediss://h/?client_name=a%26b&protocol=resp3#insecure";
    assert_parsed(url, &[rest], "server", &[("wait", "1")]);
    let url = "unix:///tmp/x?db=1&user=u&pass=p&wait=1";
    assert_parsed(url, &["unix:///tmp/x?db=1&user=u&pass=p"], "server", &[("wait", "1")]);
    let url = "redis+sentinel://a/m?master_login=u:p&pool=4&client_name=x";
    let settings = [("master_login", "u:p"), ("pool", "4")];
    assert_parsed(url, &["redis://a/?client_name=x"], "m", &settings);
    let url = "redis://h?db=1";
    assert_parsed(url, &["redis://h"], "server", &[("db", "1")]);
}

#[test]
fn white_space_around_every_url_is_ignored() {
    assert_parsed(" redis://h/\n", &["redis://h/"], "server", &[]);
    let url = "\tredis+cluster://a/?wait=1\r\n";
    assert_parsed(url, &["redis://a/"], "cluster", &[("wait", "1")]);
}

#[test]
fn every_url_that_a_password_has_broken_is_explained() {
    for url in [
        "redis://:sec/ret@host",
        "'redis://:secret@host'",
        "redis+sentinel://:sec/ret@host/shop",
        "redis+redlock://:sec\nret@host",
    ] {
        let error = parse(url).map(drop).expect_err(url).to_string();
        assert!(error.contains("%23") && !error.contains("ret@host"), "{url:?}: {error}");
    }
}

#[test]
fn several_hosts_share_the_rest_of_the_url() {
    let wait = [("wait", "1")];
    let url = "redis+cluster://u:p@a,b:7,[::1]:8/?wait=1";
    let urls = ["redis://u:p@a/", "redis://u:p@b:7/", "redis://u:p@[::1]:8/"];
    assert_parsed(url, &urls, "cluster", &wait);
    let url = "rediss+redlock://a,b/3?wait=1&client_name=x";
    let urls = ["rediss://a/3?client_name=x", "rediss://b/3?client_name=x"];
    assert_parsed(url, &urls, "redlock", &wait);
    let urls = ["redis://:p@a:1/", "redis://:p@b/"];
    assert_parsed("redis+sentinel://:p@a:1,b/shop?wait=1", &urls, "shop", &wait);
    let urls = ["redis://a/2", "redis://b/2"];
    assert_parsed("redis+sentinel://a,b/my-shop.1/2", &urls, "my-shop.1", &[]);
}

#[test]
fn a_bad_url_is_not_repeated() {
    for url in [
        "redis+sentinel://:secret@a,b",
        "redis+sentinel://:secret@a,b/",
        "redis+sentinel://:secret@a,b/a%20b",
        "redis://u:1?secret=1@host",
        "redis://host?secret@host",
        "redis://host?prefix=secret%zz",
        "redis://host?prefix=secret%2",
        "redis://host?prefix=secret%",
        "redis://host?prefix=secret%ff",
        "redis://host?prefix=secret%c3%29",
        "unix:///tmp/x?user=u&pass=a&secret",
        "unix:///tmp/x?pass=a&secret=1&user=u",
        "redis+sentinel://a,b/m?wait=1&master_login=u:a&secret=1",
    ] {
        let error = parse(url).expect_err(url).to_string();
        assert!(error.contains("url") && !error.contains("secret"), "{error}");
    }
}

fn applied(options: &[(&str, &str)]) -> Result<Config> {
    let mut config = Config::default();
    let own = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    apply(&mut config, options.iter().map(own))?;
    Ok(config)
}

#[test]
fn every_setting_has_a_text() {
    let config = applied(&[
        ("backoff", "1ms..2s"),
        ("connect_timeout", "3s"),
        ("deadlock", "fail"),
        ("deadlock_after", "2s"),
        ("durability", "fsync:true:2:100ms"),
        ("fence_life", "2h"),
        ("idle_timeout", "none"),
        ("io_timeout", "200ms"),
        ("keep", "2s"),
        ("label", "me"),
        ("lazy", "true"),
        ("lease", "20"),
        ("master_login", "me:a:b"),
        ("max_hold", "5m"),
        ("max_lifetime", "1d"),
        ("note", "deploy 4711"),
        ("pollers", "true"),
        ("pool", "4"),
        ("prefix", "app:"),
        ("redisson", "true"),
        ("reentrant", "false"),
        ("renew", "false"),
        ("retry_window", "7s"),
        ("spin", "20us"),
        ("tenure", "5ms"),
        ("wait", "0"),
        ("warn_held", "1m"),
    ])
    .expect("good settings");
    let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
    assert_eq!(config.backoff, (ms(1), seconds(2)));
    assert_eq!(config.connect_timeout, seconds(3));
    assert_eq!(config.deadlock, Deadlock::Fail);
    assert_eq!(config.deadlock_after, Some(seconds(2)));
    assert_eq!(config.warn_held, Some(seconds(60)));
    let fsync = Durability::Fsync { local: true, replicas: 2, timeout: ms(100) };
    assert_eq!(config.durability, fsync);
    assert_eq!(config.fence_life, seconds(7200));
    assert_eq!(config.idle_timeout, None);
    assert_eq!(config.io_timeout, Some(ms(200)));
    assert_eq!(config.options.keep, seconds(2));
    assert_eq!(config.label.as_deref(), Some("me"));
    assert_eq!(config.options.note.as_deref(), Some("deploy 4711"));
    assert!(config.lazy && !config.options.reentrant && !config.options.renew);
    assert_eq!(config.options.lease, seconds(20));
    let login = config.master_login.expect("it is set");
    assert_eq!((&*login.user, &*login.password), ("me", "a:b"));
    assert_eq!(config.options.max_hold, Some(seconds(300)));
    assert_eq!(config.max_lifetime, Some(seconds(86_400)));
    assert_eq!(config.pool_size, 4);
    assert_eq!(config.prefix, "app:");
    assert!(config.redisson && config.pollers);
    assert_eq!(config.retry_window, seconds(7));
    assert_eq!(config.spin, Duration::from_micros(20));
    assert_eq!(config.options.tenure, Some(ms(5)));
    assert_eq!(config.options.wait, Some(Duration::ZERO));
}

#[test]
fn a_durability_is_a_kind_and_its_numbers() {
    let timeout = Duration::from_millis(100);
    assert_eq!(durability("memory"), Some(Durability::Memory));
    let replicas = Durability::Replicas { acks: 1, timeout };
    assert_eq!(durability("replicas:1:100ms"), Some(replicas));
    let fsync = Durability::Fsync { local: false, replicas: 3, timeout };
    assert_eq!(durability("fsync:false:3:0.1"), Some(fsync));
    for bad in ["", "disk", "replicas", "replicas:1", "replicas:-1:1s", "fsync:1:1:1s"] {
        assert_eq!(durability(bad), None, "{bad}");
    }
}

#[test]
fn a_bad_setting_is_named_without_its_text() {
    for (name, text) in [
        ("lease", "secret"),
        ("backoff", "1s"),
        ("backoff", "1s..secret"),
        ("pool_size", "-1"),
        ("renew", "secret"),
        ("durability", "secret"),
        ("master_login", "secret"),
        ("colour", "secret"),
        ("protocol", "secret"),
    ] {
        let error = applied(&[(name, text)]).expect_err(name).to_string();
        assert!(error.contains(name) && !error.contains("secret"), "{error}");
    }
    let error = applied(&[("pool", "1"), ("pool_size", "1")]).expect_err("twice").to_string();
    assert!(error.contains("pool_size"), "{error}");
}

#[test]
fn a_name_that_may_have_a_secret_in_it_is_not_repeated() {
    for name in ["master_login:ada:secret", "pass:secret", "secret@host", "secret"] {
        let error = applied(&[("lease", "1s"), (name, "")]).expect_err(name).to_string();
        assert!(error.contains("a setting") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_number_without_a_unit_is_in_seconds() {
    for (text, micros) in [
        ("50us", 50),
        ("500ms", 500_000),
        ("2s", 2_000_000),
        ("5m", 300_000_000),
        ("1h", 3_600_000_000),
        ("1d", 86_400_000_000),
        ("30", 30_000_000),
        ("0", 0),
        ("1.5s", 1_500_000),
        ("0.25", 250_000),
    ] {
        assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
    }
}

#[test]
fn invalid_durations_are_refused() {
    for text in ["", "s", "-1", "1x", "1 s", "1S", "inf", "NaN", "1e3", "1e400d", ".", "1s2"] {
        parse_duration(text).expect_err(text);
    }
    parse_duration(&"9".repeat(30)).expect_err("too long");
}
