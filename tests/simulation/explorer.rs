//! All runs of small worlds with at most a few deviations from the usual course.
//!
//! A run is a list of choices (`executor::choose`): which thread runs on, whether a request or a
//! message is late or lost or comes twice, what happens to a client. A world in which everything
//! goes as usual shows where there were choices. Each other way of one of them is a run with one
//! deviation, which has choices of its own, and so on. So a broken promise is found with the fewest
//! possible deviations. Pauses between attempts are long here, so a thread that is not woken is
//! late.

use std::sync::mpsc::{self, Receiver};
use std::{env, mem, thread};

use crate::base::sync::executor::{self, Choice, Deviation};
use crate::simulation::flaws::{ALL, Flaw};
use crate::simulation::scenes::{Scene, run_scene, scenes};
use crate::simulation::{Broken, FOUND_BY_A_COURSE, flaw_to_plant, guarded, show};

/// The number of runs that kept their promises, and the deviations that broke one.
struct Explored {
    runs: u64,
    broken: Option<(Vec<Deviation>, Option<Choice>, Broken)>,
}

/// Runs a world with each list of at most `most` deviations, the shortest first.
fn begin(scene: &Scene, most: usize, flaw: Option<Flaw>) -> Receiver<Explored> {
    let (sender, explored) = mpsc::channel();
    let scene = scene.clone();
    // A thread that has panicked cannot run another world.
    thread::spawn(move || {
        let mut runs = 0;
        let mut courses = vec![Vec::new()];
        for length in 0..=most {
            for deviations in mem::take(&mut courses) {
                let worst = deviations.iter().map(|(_, choice, _)| *choice).max();
                let course: Vec<_> = deviations.iter().map(|(at, _, way)| (*at, *way)).collect();
                let run = || run_scene(&scene, &course, worst, false);
                if let Err(broken) = guarded(flaw, run) {
                    let broken = Some((course, worst, broken));
                    sender.send(Explored { runs, broken }).expect("the test waits");
                    thread::park();
                }
                runs += 1;
                let choices = executor::choices();
                let first = deviations.last().map_or(0, |(at, ..)| at + 1);
                let later = choices.into_iter().enumerate().skip(first);
                for (at, (choice, ways)) in later.filter(|_| length < most) {
                    for way in 1..ways {
                        let next = [&*deviations, &[(at, choice, way)]].concat();
                        courses.push(next);
                    }
                }
            }
        }
        sender.send(Explored { runs, broken: None }).expect("the test waits");
    });
    explored
}

/// Returns the small worlds, or the one that the environment names.
fn chosen() -> Vec<(&'static str, Scene)> {
    let only = env::var("LEASEHOLD_SCENE").ok();
    let mut scenes = scenes();
    scenes.retain(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    scenes
}

/// Runs a world that has broken a promise again, with its history.
fn repeat(
    scene: &Scene,
    deviations: &[Deviation],
    worst: Option<Choice>,
    flaw: Option<Flaw>,
) -> Broken {
    let (sender, outcome) = mpsc::channel();
    let (scene, deviations) = (scene.clone(), deviations.to_vec());
    thread::spawn(move || {
        let broken = guarded(flaw, || run_scene(&scene, &deviations, worst, true)).err();
        sender.send(broken.expect("it has failed before")).expect("the test waits");
        thread::park();
    });
    outcome.recv().expect("an outcome")
}

#[test]
fn promises_hold_whatever_happens_in_small_worlds() {
    let most = env::var("LEASEHOLD_DEVIATIONS").ok().and_then(|most| most.parse().ok());
    let (scenes, flaw) = (chosen(), flaw_to_plant());
    // On all cores.
    let all = scenes.iter().map(|(_, scene)| begin(scene, most.unwrap_or(scene.most), flaw));
    let all: Vec<_> = all.collect();
    for ((name, scene), explored) in scenes.iter().zip(all) {
        let Explored { runs, broken } = explored.recv().expect("an outcome");
        if let Some((deviations, worst, _)) = broken {
            let broken = repeat(scene, &deviations, worst, flaw);
            let what = format!("{name}, with {deviations:?}");
            let variables =
                format!("LEASEHOLD_SCENE='{name}' LEASEHOLD_DEVIATIONS={}", deviations.len());
            show(&what, &broken, &variables, flaw, "promises_hold_whatever_happens_in_small");
        }
        println!("{name}: {runs} runs");
    }
}

/// Many flaws need at most one deviation. The seeds find the others as well.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization")]
fn small_worlds_find_planted_flaws() {
    let only = flaw_to_plant();
    let is_meant = |flaw: &&Flaw| only.is_none_or(|only| only == **flaw);
    let mut missed = Vec::new();
    for &flaw in ALL.iter().filter(is_meant) {
        let mut runs = 0;
        let found = (0..=1).find_map(|most| {
            chosen().into_iter().find_map(|(name, scene)| {
                let explored =
                    begin(&scene, most.min(scene.most), Some(flaw)).recv().expect("an outcome");
                runs += explored.runs;
                explored.broken.map(|(course, _, broken)| (name, course.len(), broken.why))
            })
        });
        match found {
            Some((name, deviations, why)) => {
                println!("{flaw:?}: {name}, {deviations} deviations, {runs} runs: {why}");
            }
            None => missed.push(flaw),
        }
    }
    assert!(missed.len() * 2 <= ALL.len(), "not found: {missed:?}");
    let hidden: Vec<_> = FOUND_BY_A_COURSE.iter().filter(|it| missed.contains(it)).collect();
    assert!(hidden.is_empty(), "not found: {hidden:?}");
    println!("not found: {missed:?}");
}
