//! A class on a simulated clock: how much each student gets, and whether every job runs in the end.

use crate::class::{Class, HOUR, SECOND, Student, jain, student};

#[test]
fn equal_students_get_equal_shares_of_a_saturated_hour() {
    let students = (0..60)
        .map(|_| student((10 * SECOND, 90 * SECOND)))
        .collect();
    let mut class = Class::new(students, 4);
    class.run_until(HOUR);
    let index = jain(&class.shares());
    assert!(index >= 0.95, "{index}");
}

/// Long cells bring no larger share, and short ones no smaller share.
#[test]
fn the_length_of_cells_does_not_buy_a_larger_share() {
    let lengths = [(5, 10), (20, 60), (60, 240)];
    let students = (0..30).map(|number| {
        let (from, to) = lengths[number % 3];
        student((from * SECOND, to * SECOND))
    });
    let mut class = Class::new(students.collect(), 4);
    class.run_until(6 * HOUR);
    let index = jain(&class.shares());
    assert!(index >= 0.9, "{index} {:?}", class.shares());
}

/// Cells are short, so waiting decides, and not use.
#[test]
fn a_flood_of_cells_buys_no_larger_share() {
    let students = (0..30).map(|_| student((200, 200))).collect();
    let mut class = Class::new(students, 1);
    for _ in 0..200 {
        class.submit(0);
    }
    class.run_until(80 * SECOND);
    let shares = class.shares();
    let others = shares[1..].iter().sum::<f64>() / 29.0;
    assert!(shares[0] <= 1.2 * others, "{shares:?}");
    // Neither does the flood cost the student anything.
    assert!(shares[0] >= 0.8 * others, "{shares:?}");
}

#[test]
fn a_course_gets_its_weight_and_a_deadline_its_boost() {
    let of = |weight, boost| Student {
        weight,
        boost,
        ..student((20 * SECOND, 40 * SECOND))
    };
    let students =
        (0..30).map(|number| [of(1.0, 1.0), of(2.0, 1.0), of(1.0, 3.0)][number % 3].clone_fresh());
    let mut class = Class::new(students.collect(), 3);
    class.run_until(8 * HOUR);
    let shares = class.shares();
    let of_kind = |kind: usize| shares.iter().skip(kind).step_by(3).sum::<f64>();
    let (one, two, boosted) = (of_kind(0), of_kind(1), of_kind(2));
    assert!((1.6..2.2).contains(&(two / one)), "{}", two / one);
    assert!((2.0..3.3).contains(&(boosted / one)), "{}", boosted / one);
}

impl Student {
    fn clone_fresh(&self) -> Self {
        Self {
            weight: self.weight,
            boost: self.boost,
            low_priority: self.low_priority,
            ..student(self.runs)
        }
    }
}

/// A person who has used a day of GPU time asks for little, at low priority. Meanwhile an endless
/// stream of others has a weight, a deadline and no use so far.
#[test]
fn nobody_starves() {
    let mut victim = Student {
        low_priority: true,
        ..student((SECOND, SECOND))
    };
    victim.charge(12 * HOUR, 0);
    let mut students = vec![victim];
    let fresh = || Student {
        weight: 4.0,
        boost: 3.0,
        ..student((5 * SECOND, 10 * SECOND))
    };
    students.extend((0..4).map(|_| fresh()));
    let mut class = Class::new(students, 2);
    let mut last = 0;
    while class.students[0].all_ms == 12 * HOUR {
        assert!(class.now < 60 * HOUR, "the turn does not come");
        class.run_until(class.now + 60 * SECOND);
        assert!(class.now > last);
        last = class.now;
        // The others are always new people: their use is forgotten.
        for student in &mut class.students[1..] {
            student.used_ms = 0.0;
        }
    }
}
