//! A client in a forked child, after threads of the parent had locked everything.

use std::sync::Arc;
use std::thread;

use crate::error::Error;
use crate::local::status;
use crate::local::tests::{LEASE, Scene, eventually};
use crate::store::hold_id::HoldKind;

#[test]
fn a_child_is_told_what_it_asks_though_the_parent_had_locked_everything() {
    let mut scene = Scene::new(LEASE * 100);
    let level = scene.lock();
    Arc::get_mut(&mut scene.shared).expect("no other clone").process = 0;
    let _locked = scene.shared.names.lock_all();
    let (shared, name, hold) = (scene.shared.clone(), scene.name.clone(), level.hold.clone());
    let child = thread::spawn(move || {
        assert_eq!(shared.stats().held, 1);
        assert!(status::waiting_names(&shared).is_empty());
        assert!(hold.fence() > 0 && !shared.is_held(&hold) && shared.remaining(&hold).is_zero());
        let refused = [
            status::holder(&shared, &name).map(drop),
            status::leader(&shared, &name).map(drop),
            status::count(&shared, &name).map(drop),
            status::force_unlock(&shared, &name).map(drop),
            status::ping(&shared).map(drop),
            crate::local::release::unlock(&shared, &[hold]),
        ];
        let is_forked = |refused: &Result<(), Error>| matches!(refused, Err(Error::Forked));
        assert!(refused.iter().all(is_forked), "{refused:?}");
        shared.close();
    });
    eventually(|| child.is_finished());
    child.join().expect("no panic");
    assert!(matches!(level.hold.id.kind, HoldKind::Lock));
}
