//! Resets that one drive alone has heard of: the latest holds, whichever drive it was.

use crate::several::{Drives, arriving, singles, store_all};

#[test]
fn of_resets_that_reached_one_drive_each_the_later_one_counts() {
    for [first, second] in [["a", "b"], ["b", "a"]] {
        let drives = Drives::new(&[("a", 60), ("b", 60)]);
        drives.open().close();
        let (old, new) = (singles(1, 20), singles(2, 20));
        let alone = |name| {
            let other = if name == "a" { "b" } else { "a" };
            drives.kill(other);
            let rig = drives.open();
            drives.heal(other);
            rig
        };

        let rig = alone(first);
        rig.manager.reset_blocking().unwrap();
        assert_eq!(store_all(&rig, &old), 20);
        rig.close();

        let rig = alone(second);
        rig.manager.reset_blocking().unwrap();
        assert_eq!(store_all(&rig, &new), 20);
        rig.close();

        let rig = drives.open();
        assert!(arriving(&rig, &old).is_empty(), "{first} has not heard of the latest reset");
        assert_eq!(arriving(&rig, &new), new);
        rig.close();
    }
}
