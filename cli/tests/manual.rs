//! Shell completions, manual pages, and the scripts in the pages for users.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Running, Server, client, finish, leasehold, output, without_server};

/// A directory that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("leasehold-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes an executable script.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns a PATH that includes the program.
fn path() -> OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths([program].into_iter().chain(env::split_paths(&path))).unwrap()
}

fn with_program(server: &Server, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).env("REDIS_URL", server.url()).stdin(Stdio::null());
    command
}

#[test]
fn every_task_has_a_manual_page() {
    let page = output(&mut without_server(&["man"]));
    assert!(page.contains(".TH leasehold 1"), "{page}");
    for (task, words) in [
        ("run", &["kill\\-after", "LEASEHOLD_FENCE", "\\-\\-url", "\\-\\-yield"][..]),
        ("lock", &["\\-\\-lease"]),
        ("unlock", &["\\-\\-client", "\\-\\-label"]),
    ] {
        assert!(page.contains(&format!("leasehold\\-{task}(1)")), "{task}: {page}");
        let page = output(&mut without_server(&["man", task]));
        assert!(page.contains(&format!(".TH leasehold-{task} 1")), "{page}");
        for word in words {
            assert!(page.contains(word), "{word}: {page}");
        }
    }
    assert_eq!(finish(&mut without_server(&["man", "no-such-task"])).code, 64);
}

#[test]
fn manual_pages_list_exit_statuses_and_show_what_is_typed() {
    let tasks =
        ["completions", "lock", "ls", "man", "ping", "release", "renew", "run", "show", "unlock"];
    for task in [None].into_iter().chain(tasks.map(Some)) {
        let args: Vec<_> = ["man"].into_iter().chain(task).collect();
        let page = output(&mut without_server(&args));
        assert!(!page.contains('`'), "{task:?}: {page}");
        let (_, section) = page.split_once(".SH \"EXIT STATUS\"\n").expect("a section");
        let statuses: Vec<_> = section
            .split(".TP\n\\fB")
            .skip(1)
            .map(|rest| rest.split_once("\\fR\n").expect("a status").0)
            .collect();
        let has = |status| statuses.contains(&status);
        assert!(has("64") && has("71"), "{task:?}: {statuses:?}");
        let is_either = |some: &[&str]| task.is_none_or(|task| some.contains(&task));
        assert_eq!(has("70"), is_either(&["release", "renew", "run"]), "{task:?}: {statuses:?}");
        assert_eq!(has("75"), is_either(&["lock", "run"]), "{task:?}: {statuses:?}");
        assert_eq!(has("127"), is_either(&["run"]), "{task:?}: {statuses:?}");
        let has_json = ["lock", "ls", "ping", "show", "unlock"];
        assert_eq!(page.contains("\\-\\-json"), is_either(&has_json), "{task:?}: {page}");
        if let Some(task) = task {
            let help = output(&mut without_server(&[task, "--help"]));
            assert_eq!(help.contains("--json"), has_json.contains(&task), "{help}");
        }
    }
    let page = output(&mut without_server(&["man", "run"]));
    assert!(page.contains("\\fBleasehold run\\fR [OPTIONS] <NAME> \\-\\- <CMD>..."), "{page}");
}

#[test]
fn names_are_completed_in_bash() {
    let server = Server::redis();
    let client = client(&server);
    let _guards = ["stock:42", "stock:43", "re port"].map(|name| client.lock_owned(name).unwrap());
    let complete = |line: &str| {
        let script = format!(
            "source <(leasehold completions bash)
            COMP_LINE={line:?} COMP_POINT=${{#COMP_LINE}}
            read -ra COMP_WORDS <<<\"$COMP_LINE\"
            [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            complete -p leasehold | grep -q _leasehold_with_names || exit
            _leasehold_with_names leasehold \"${{COMP_WORDS[COMP_CWORD]}}\" \
                \"${{COMP_WORDS[COMP_CWORD-1]}}\"
            printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let printed = output(with_program(&server, "bash").args(["-c", &script]));
        printed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("leasehold show stock:"), ["42", "43"]);
    assert_eq!(complete("leasehold unlock st"), ["stock:42", "stock:43"]);
    assert_eq!(complete("leasehold show r"), ["re\\ port"]);
    assert!(complete("leasehold run -n ").contains(&"stock:42".to_owned()));
    assert!(complete("leasehold run a -- st").iter().all(|word| !word.starts_with("stock")));
    assert!(complete("leasehold --prefix other: show st").iter().all(String::is_empty));
    assert_eq!(complete("leasehold unl"), ["unlock"]);
}

#[test]
fn names_are_listed_one_on_a_line() {
    let server = Server::redis();
    let client = client(&server);
    let _guards = ["b", "a 1", "c"].map(|name| client.lock_owned(name).unwrap());
    assert_eq!(output(&mut leasehold(&server, &["ls", "--names"])), "a 1\nb\nc\n");
    assert_eq!(output(&mut leasehold(&server, &["ls", "--names", "a"])), "a 1\n");
    for (shell, call) in [("zsh", ":_leasehold_names' \\"), ("fish", "ls --names")] {
        let script = output(&mut without_server(&["completions", shell]));
        assert!(script.contains(call), "{shell}: {script}");
    }
}

/// Returns the script that follows this heading in a page, with another interpreter and other work.
#[track_caller]
fn script_in(page: &str, heading: &str, work: &str) -> String {
    let (_, rest) = page.split_once(&format!("## {heading}\n")).expect("the heading");
    let (_, rest) = rest.split_once("```sh\n").expect("a script");
    let script = rest.split("```").next().expect("a part");
    format!("{script}\n{work}\n")
}

#[test]
fn a_script_runs_itself_under_a_lock() {
    let (server, folder) = (Server::redis(), Folder::new("itself"));
    let page = include_str!("../../docs/program.md");
    let work = "echo \"$LEASEHOLD_NAME $LEASEHOLD_FENCE $*\"; read -r line; exit 3";
    let script = folder.script("report", &script_in(page, "A script that locks itself", work));
    let start = || {
        let mut command = with_program(&server, &script);
        Running::start(command.args(["a b", "c"]).stdin(Stdio::piped()))
    };
    let mut first = start();
    let line = first.next();
    let [name, fence, rest] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!((name, rest), ("report", "a b c"));
    assert!(fence.parse::<u64>().is_ok(), "{line}");
    assert_eq!(start().code(), 75, "it runs already");
    first.write("go on\n");
    assert_eq!(first.code(), 3);
    assert!(client(&server).try_lock("report").unwrap().is_some());
}

#[test]
fn a_script_works_under_a_ticket() {
    let (server, folder) = (Server::redis(), Folder::new("ticket"));
    let page = include_str!("../../docs/program.md");
    let script = script_in(page, "lock, renew, release", "");
    let steps = ["build", "deploy"]
        .map(|step| folder.script(step, "#!/bin/sh\nleasehold show deploy | grep -c holder\n"));
    let run = || {
        let mut command = with_program(&server, "sh");
        finish(command.args(["-e", "-c", &script]).current_dir(&folder.0))
    };
    let finished = run();
    assert_eq!((finished.code, &*finished.stdout), (0, "1\n1\n"), "{finished:?} {steps:?}");
    let client = client(&server);
    let _guard = client.try_lock("deploy").unwrap().expect("it is released");
    let script_of_another = script.replace("30s", "50ms");
    let mut command = with_program(&server, "sh");
    let finished = finish(command.args(["-c", &script_of_another]).current_dir(&folder.0));
    assert_eq!((finished.code, &*finished.stdout), (75, ""), "{finished:?}");
}
