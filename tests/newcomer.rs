//! Follows README as a newcomer would, with the package that would be published instead of the
//! published one. The text is taken from that package, so that it cannot drift from what works.
//! Also checks the compiler's reaction to a newcomer's mistake.
#![allow(clippy::unwrap_used, reason = "in a test, a panic at the line that went wrong is wanted")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use self::server::Server;

#[path = "it/support/server.rs"]
mod server;

/// The directory that README's commands may touch.
const DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/newcomer");

#[test]
fn the_first_program_in_the_readme_runs_as_pasted() {
    let server = Server::redis();
    let code = replace(&block("rust"), "redis://127.0.0.1/", &server.url());

    let printed = run(&mut cargo_run("app", &code));

    // The text that the code prints, up to the first value in each line.
    let code = code.replace("eprintln!(", "");
    let wanted = code.split("println!(\"").skip(1).map(|rest| rest.split(['{', '"']).next());
    let wanted: Vec<_> = wanted.map(Option::unwrap).collect();
    let lines: Vec<_> = printed.lines().collect();
    assert!(!lines.is_empty() && lines.len() == wanted.len(), "{wanted:?}, but: {printed}");
    for (line, wanted) in lines.iter().zip(wanted) {
        assert!(line.starts_with(wanted), "{wanted:?}, but: {printed}");
    }
}

#[test]
fn the_program_installs_and_runs_as_in_the_readme() {
    let program = unpacked("leasehold-cli");
    // The tested dependencies, except that the library is the package, not the published one.
    let lock = program.join("Cargo.lock");
    let locked = fs::read_to_string(&lock).unwrap();
    let (before, rest) = locked.split_once("name = \"leasehold\"\n").unwrap();
    let (version, rest) = rest.split_once("source = ").unwrap();
    let (_registry, rest) = rest.split_once("dependencies").unwrap();
    let patched = format!("{before}name = \"leasehold\"\n{version}dependencies{rest}");
    fs::write(&lock, patched).unwrap();
    let server = Server::redis();
    // This avoids the release profile, which takes much longer to compile.
    let here = format!(
        "cargo install --locked --debug --config \"{}\" --path '{}'",
        published(),
        program.display()
    );
    let commands = replace(&block("sh"), "cargo install --locked leasehold-cli", &here);
    let job = Path::new(DIR).join("write-report");
    fs::write(&job, "#!/bin/sh\necho \"report $LEASEHOLD_FENCE\"\n").unwrap();
    run(Command::new("chmod").arg("+x").arg(job));
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("PATH={DIR}/bin:$PATH; {commands}")]).current_dir(DIR);

    let printed = run(prepare(&mut shell).env("REDIS_URL", server.url()));

    let fence = printed.strip_prefix("report ").map(str::trim_end);
    let fence = fence.and_then(|fence| fence.parse::<u64>().ok());
    assert!(fence.is_some_and(|fence| fence > 0), "{printed}");
}

#[test]
fn the_first_example_builds_no_crate_that_only_tests_need() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let ask = |args: &[&str]| run(cargo().args(args).args(["--manifest-path", manifest]));
    let known = ask(&["metadata", "--no-deps", "--format-version", "1"]);
    let known: serde_json::Value = serde_json::from_str(&known).unwrap();
    let has_it = |package: &&serde_json::Value| {
        let mut targets = package["targets"].as_array().unwrap().iter();
        targets.any(|target| target["name"] == "quickstart" && target["kind"][0] == "example")
    };
    let packages: Vec<_> = known["packages"].as_array().unwrap().iter().filter(has_it).collect();
    assert_eq!(packages.len(), 1, "{packages:?}");
    let name = packages[0]["name"].as_str().unwrap();
    let tree = ask(&["tree", "--package", name, "--edges", "normal,build,dev", "--prefix", "none"]);
    assert!(tree.lines().any(|line| line.starts_with("leasehold v")), "{tree}");
    for only_in_tests in ["libsqlite3-sys", "proptest", "rayon", "rcgen", "serde_derive"] {
        let is_built = tree.lines().any(|line| line.split(' ').next() == Some(only_in_tests));
        assert!(!is_built, "{only_in_tests}: {tree}");
    }
}

#[test]
fn the_compiler_explains_what_to_do_about_a_guard_that_is_sent() {
    let code = r#"
        fn main() {
            let guard = leasehold::Client::in_memory().lock("stock:42").unwrap();
            std::thread::spawn(move || drop(guard));
        }"#;

    let output = cargo_run("sends", code).output().unwrap();

    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("UseLockOwned"), "{errors}");
}

/// Runs the code in a new crate that has the dependencies of the README.
fn cargo_run(name: &str, code: &str) -> Command {
    let package = package();
    let app = Path::new(DIR).join(name);
    fs::remove_dir_all(&app).ok(); // of an earlier run
    run(cargo().args(["new", "--quiet", "--vcs", "none"]).arg(&app));
    let manifest = app.join("Cargo.toml");
    let empty = fs::read_to_string(&manifest).unwrap();
    let empty = empty.strip_suffix("[dependencies]\n").expect("a new crate has no dependencies");
    fs::write(&manifest, format!("{empty}{}", block("toml"))).unwrap();
    // The tested dependencies, which are on this machine.
    fs::copy(package.join("Cargo.lock"), app.join("Cargo.lock")).unwrap();
    fs::write(app.join("src/main.rs"), code).unwrap();
    let mut command = cargo();
    command.current_dir(&app).args(["run", "--quiet", "--config", &published()]);
    command
}

/// A setting of cargo that puts the package of the library in place of the published one.
fn published() -> String {
    format!("patch.crates-io.leasehold.path='{}'", package().display())
}

/// Returns the directory of the library's package that would be published, unpacked.
fn package() -> &'static Path {
    static PACKAGE: OnceLock<PathBuf> = OnceLock::new();
    PACKAGE.get_or_init(|| unpacked("leasehold"))
}

/// Packs a package as it would be published, unpacks it, and returns its directory.
fn unpacked(name: &str) -> PathBuf {
    static PACKED: OnceLock<()> = OnceLock::new();
    PACKED.get_or_init(|| {
        fs::create_dir_all(DIR).unwrap();
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let packages = ["--package", "leasehold", "--package", "leasehold-cli"];
        let options = ["--quiet", "--no-verify", "--allow-dirty", "--manifest-path", manifest];
        run(cargo().arg("package").args(packages).args(options));
    });
    let name = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
    let unpacked = Path::new(DIR).join(&name);
    fs::remove_dir_all(&unpacked).ok(); // of an earlier run
    // The files get new times, because cargo recompiles those that are newer than the last result.
    let archive = format!("{DIR}/target/package/{name}.crate");
    run(Command::new("tar").args(["-xmzf", &archive, "-C", DIR]));
    unpacked
}

fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    prepare(&mut cargo);
    cargo
}

/// Makes cargo work without a network, and within `DIR`.
fn prepare(command: &mut Command) -> &mut Command {
    command
        .env("CARGO_INSTALL_ROOT", DIR)
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_TARGET_DIR", format!("{DIR}/target"))
}

/// Returns the first block of code in that language.
fn block(language: &str) -> String {
    let readme = fs::read_to_string(package().join("README.md")).unwrap();
    let rest = readme.split_once(&format!("```{language}")).expect("README has such a block").1;
    let (_attributes, rest) = rest.split_once('\n').unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// Replaces a text that differs on a newcomer's machine.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from:?} in:\n{text}");
    text.replace(from, to)
}

/// Runs a command that must succeed, and returns what it prints.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [printed, errors] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed
}
