//! Machines that differ, and machines that start and stop.

use crate::{
    CLASS, close,
    simulation::{HOUR, past},
};
use baton_plan::{
    PoolScaling, Rates, Repairman, repairman, simulated_lesson,
    simulation::{
        Course, Fleet, FleetAnswer, Group, Length, MachineKind, Machines, Pool, Runs, Times, fleet,
    },
};
use baton_protocol::{Machine, Requirement, worker::Device};
use baton_scheduling::queue::Offer;
use proptest::prelude::*;
use std::sync::Arc;

fn gpus(model: &str, gibibytes: u64) -> MachineKind {
    MachineKind {
        offer: Arc::new(Offer {
            devices: vec![Device {
                kind: baton_protocol::worker::DeviceKind::Cuda,
                model: model.to_owned(),
                memory_bytes: gibibytes << 30,
                compute_capability: None,
            }],
            machine: Machine::default(),
        }),
        slots: 1,
        speed: 1.0,
    }
}

fn machines(count: u32, kind: MachineKind) -> Machines {
    Machines { kind, count }
}

fn gpu(model: &str) -> Requirement {
    Requirement::Gpu {
        model: model.to_owned(),
    }
}

fn people(people: usize, needs: &[Requirement]) -> Group {
    Group {
        course: Course::Drawn {
            people,
            edit: Times::Exponential(120.0),
            run: Times::Exponential(30.0),
        },
        needs: needs.into(),
    }
}

fn with(groups: Vec<Group>, machines: Vec<Machines>) -> Fleet {
    Fleet {
        groups,
        machines,
        pools: Vec::new(),
    }
}

fn pool(min: u32, max: u32, idle: f64) -> Pool {
    Pool {
        kind: gpus("a100", 80),
        scaling: PoolScaling {
            min,
            max,
            target_wait_ms: 60_000,
        },
        start: Times::Fixed(40.0),
        idle: Some(idle),
        walltime: None,
    }
}

fn on_pool(pool: Pool) -> Fleet {
    Fleet {
        groups: vec![people(12, &[])],
        machines: Vec::new(),
        pools: vec![pool],
    }
}

fn hours(measured: f64) -> Length {
    Length {
        warm_up: HOUR,
        measured: measured * HOUR,
    }
}

const TEN: Runs = Runs { count: 10, seed: 1 };
const WHOLE: Length = Length {
    warm_up: 0.0,
    measured: f64::INFINITY,
};
const ONCE: Runs = Runs { count: 1, seed: 1 };

fn exactly(people: usize, gpus: usize) -> Repairman {
    let rates = Rates {
        submission: 1.0 / 120.0,
        execution: 1.0 / 30.0,
        ..CLASS
    };
    repairman(&rates, people, gpus)
}

/// What people and machines experience, without the division of the machines into kinds.
fn experience(answer: &FleetAnswer) -> String {
    let FleetAnswer {
        all, groups, pools, ..
    } = answer;
    format!("{all:?} {groups:?} {pools:?}")
}

/// Three cells at once on one machine that takes ten seconds to start: it is requested at once, and
/// the cells run one after another.
#[test]
fn a_replayed_burst_waits_for_the_start_and_for_those_ahead() {
    let cells = [0, 1, 2].map(|person| past(person, 50.0, 50.0, 70.0));
    let burst = |walltime| Fleet {
        groups: vec![Group {
            course: Course::replayed(&cells),
            needs: [].into(),
        }],
        ..on_pool(Pool {
            start: Times::Fixed(10.0),
            walltime,
            ..pool(0, 1, 60.0)
        })
    };
    let seconds = |answer: &FleetAnswer| answer.pools.machine_hours.mean * HOUR;
    let answer = fleet(&burst(None), WHOLE, ONCE);
    assert_eq!(answer.all.cells, 3);
    // The broker looks at its pools once a second, from the beginning.
    close(answer.all.wait.mean, (11.0 + 31.0 + 51.0) / 3.0, 0.01);
    close(seconds(&answer), 10.0 + 60.0 + 60.0, 1e-9);
    // A machine with a limit of 40 s takes cells for 30 s. The next machine starts while the last
    // cell ends on the first.
    let answer = fleet(&burst(Some(40.0)), WHOLE, ONCE);
    close(answer.all.wait.mean, (11.0 + 31.0 + 52.0) / 3.0, 0.01);
    close(seconds(&answer), (10.0 + 40.0) + (10.0 + 30.0), 1e-9);
}

#[test]
fn a_pool_that_never_changes_is_the_machine_repairman() {
    let answer = fleet(&on_pool(pool(2, 2, 60.0)), hours(150.0), TEN);
    let exact = exactly(12, 2);
    assert!(answer.all.wait.contains(exact.wait), "{answer:?} {exact:?}");
    assert!(
        answer.pools.utilisation.contains(exact.utilisation),
        "{answer:?} {exact:?}"
    );
    assert!(answer.pools.machines.contains(2.0) && answer.pools.starts.mean == 0.0);
}

#[test]
fn a_pool_trades_machines_for_waits() {
    let simulate = |pool: Pool| fleet(&on_pool(pool), hours(20.0), Runs { count: 4, seed: 1 });
    let (fixed, elastic) = (simulate(pool(4, 4, 60.0)), simulate(pool(0, 4, 60.0)));
    assert!(elastic.pools.machines.mean < fixed.pools.machines.mean);
    assert!(elastic.all.wait.mean > fixed.all.wait.mean);
    assert!(elastic.pools.starts.mean > 0.0 && elastic.pools.machines.mean <= 4.0);
    // Machines that stay longer are started less often. A setting below the time of a start has no effect.
    let patient = simulate(pool(0, 4, 1800.0));
    assert!(patient.pools.starts.mean < elastic.pools.starts.mean);
    assert!(patient.all.wait.mean < elastic.all.wait.mean);
    let hasty = simulate(pool(0, 4, 0.001));
    let kept_for_a_start = simulate(pool(0, 4, 40.0));
    assert_eq!(hasty.pools.starts.mean, kept_for_a_start.pools.starts.mean);
}

#[test]
fn needs_that_divide_the_people_make_two_courses() {
    let groups = vec![people(12, &[gpu("a100")]), people(9, &[gpu("t4")])];
    let unlike = vec![machines(2, gpus("A100", 80)), machines(3, gpus("T4", 16))];
    let answer = fleet(
        &with(groups, unlike),
        hours(150.0),
        Runs { count: 40, ..TEN },
    );
    for (number, exact) in [exactly(12, 2), exactly(9, 3)].iter().enumerate() {
        let (waited, used) = (&answer.groups[number], &answer.kinds[number]);
        assert!(waited.wait.contains(exact.wait), "{waited:?} {exact:?}");
        assert!(
            used.utilisation.contains(exact.utilisation),
            "{used:?} {exact:?}"
        );
    }
}

/// Both pools serve their own people as if the other did not exist.
#[test]
fn pools_for_different_people_are_independent() {
    let t4 = Pool {
        kind: gpus("t4", 16),
        ..pool(0, 3, 120.0)
    };
    let both = Fleet {
        groups: vec![people(12, &[gpu("a100")]), people(9, &[gpu("t4")])],
        machines: Vec::new(),
        pools: vec![pool(0, 4, 60.0), t4.clone()],
    };
    let alone = |group: &Group, pool: Pool| Fleet {
        groups: vec![group.clone()],
        machines: Vec::new(),
        pools: vec![pool],
    };
    let together = fleet(&both, hours(100.0), TEN);
    let apart = [
        alone(&both.groups[0], pool(0, 4, 60.0)),
        alone(&both.groups[1], t4),
    ];
    for (number, apart) in apart.iter().enumerate() {
        let apart = fleet(apart, hours(100.0), Runs { seed: 100, ..TEN });
        let agree = |one: baton_plan::simulation::Estimate,
                     other: baton_plan::simulation::Estimate| {
            (one.mean - other.mean).abs() <= one.margin + other.margin
        };
        let (waited, used) = (&together.groups[number], &together.kinds[number]);
        assert!(agree(waited.wait, apart.all.wait), "{together:?} {apart:?}");
        assert!(
            agree(used.machines, apart.pools.machines),
            "{together:?} {apart:?}"
        );
        assert!(
            agree(used.starts, apart.pools.starts),
            "{together:?} {apart:?}"
        );
    }
}

#[test]
fn a_machine_that_computes_twice_as_fast_halves_the_times() {
    let class = |edit, run, speed| {
        let course = Course::Drawn {
            people: 12,
            edit: Times::Exponential(edit),
            run: Times::Exponential(run),
        };
        let kind = MachineKind {
            speed,
            ..gpus("a100", 80)
        };
        let needs = [].into();
        with(vec![Group { course, needs }], vec![machines(2, kind)])
    };
    let fast = fleet(&class(120.0, 60.0, 2.0), hours(20.0), TEN);
    let short = fleet(&class(120.0, 30.0, 1.0), hours(20.0), TEN);
    assert_eq!(experience(&fast), experience(&short));
}

#[test]
fn a_need_that_no_machine_meets_is_found() {
    let unlike = vec![machines(1, gpus("a100", 40)), machines(3, gpus("t4", 16))];
    let memory = |gibibytes: u64| Requirement::GpuMemory {
        bytes: gibibytes << 30,
    };
    for (needs, met) in [
        (vec![], true),
        (vec![gpu("t4"), memory(16)], true),
        (vec![gpu("h100")], false),
        (vec![gpu("t4"), memory(20)], false),
    ] {
        let fleet = with(vec![people(1, &needs)], unlike.clone());
        assert_eq!(fleet.meets(&fleet.groups[0]), met, "{needs:?}");
    }
}

/// Everyone submits a first cell soon after the lesson has begun.
#[test]
fn pools_have_their_machines_ready_when_a_lesson_begins() {
    let class = |start| Fleet {
        groups: vec![people(30, &[])],
        ..on_pool(Pool {
            start: Times::Fixed(start),
            ..pool(0, 20, 60.0)
        })
    };
    let runs = Runs { count: 20, seed: 1 };
    // The times of a start make no difference, as the machines are there beforehand.
    let [soon, late] = [20.0, 300.0].map(|start| simulated_lesson(&class(start), HOUR, runs));
    let margin = soon.all.wait.margin + late.all.wait.margin;
    let distance = (soon.all.wait.mean - late.all.wait.mean).abs();
    assert!(distance <= margin, "{soon:?} {late:?}");
    // The target is a minute for 99 of 100 cells, if everyone stays.
    let longest = |answer: &FleetAnswer| answer.all.waits[2];
    let late = longest(&late);
    assert!(late.mean <= 60.0 + late.margin, "{late:?}");
    // Without a lesson, the pool learns from waiting cells, and then the start counts.
    let unknown = fleet(&class(300.0), hours(8.0), TEN);
    let unknown = longest(&unknown);
    assert!(unknown.mean > 60.0 + unknown.margin, "{unknown:?}");
}

/// A pool gets no machine for a lesson that the machines outside pools can serve alone.
#[test]
fn a_lesson_counts_machines_outside_pools_first() {
    let class = |count| Fleet {
        groups: vec![people(30, &[gpu("a100")])],
        machines: vec![
            machines(count, gpus("a100", 80)),
            machines(9, gpus("t4", 16)),
        ],
        pools: vec![pool(0, 20, 60.0)],
    };
    let runs = Runs { count: 10, seed: 1 };
    let few = simulated_lesson(&class(3), HOUR, runs);
    let many = simulated_lesson(&class(20), HOUR, runs);
    assert!(few.pools.machine_hours.mean > 0.0, "{few:?}");
    assert_eq!(many.pools.machine_hours.mean, 0.0, "{many:?}");
    // None of the cells may run on the other machines.
    assert_eq!(
        (few.kinds[1].cells.mean, many.kinds[1].cells.mean),
        (0.0, 0.0)
    );
}

#[test]
fn a_lesson_ends_when_its_last_cell_has() {
    let class = with(vec![people(30, &[])], vec![machines(1, gpus("a100", 80))]);
    let answer = simulated_lesson(&class, HOUR, ONCE);
    // Every submitted cell begins, however long it waits: about 30 people wait for one GPU.
    let seconds = answer.machines.machine_hours.mean * HOUR;
    assert!(seconds > HOUR + 30.0, "{answer:?}");
    close(answer.all.cells as f64 * 30.0, seconds, 0.2);
}

fn models() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a100", "h100", "t4"])
}

fn some_machines() -> impl Strategy<Value = Vec<Machines>> {
    let kind = (
        models(),
        1..4_u32,
        1..3_u32,
        prop::sample::select(vec![0.5, 1.0, 2.0]),
    );
    let some = kind.prop_map(|(model, count, slots, speed)| Machines {
        kind: MachineKind {
            slots,
            speed,
            ..gpus(model, 16)
        },
        count,
    });
    prop::collection::vec(some, 1..4)
}

fn some_people() -> impl Strategy<Value = Vec<Group>> {
    let group = (1..10_usize, prop::option::of(models()));
    let group = group
        .prop_map(|(count, model)| people(count, &model.map(gpu).into_iter().collect::<Vec<_>>()));
    prop::collection::vec(group, 1..4)
}

fn some_pools() -> impl Strategy<Value = Vec<Pool>> {
    let some =
        (models(), 0..2_u32, 1..4_u32, 1..3_u32).prop_map(|(model, min, more, slots)| Pool {
            kind: MachineKind {
                slots,
                ..gpus(model, 16)
            },
            ..pool(min, min + more, 60.0)
        });
    prop::collection::vec(some, 0..3)
}

/// People whose needs some machine meets.
fn some_fleet() -> impl Strategy<Value = Fleet> {
    (some_people(), some_machines(), some_pools())
        .prop_map(|(groups, machines, pools)| {
            let mut fleet = Fleet {
                groups,
                machines,
                pools,
            };
            let all = fleet.clone();
            fleet.groups.retain(|group| all.meets(group));
            fleet
        })
        .prop_filter("someone", |fleet| !fleet.groups.is_empty())
}

const TWO: Runs = Runs { count: 2, seed: 1 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn cells_run_where_their_needs_are_met_and_pools_keep_their_terms(class in some_fleet()) {
        for answer in [fleet(&class, hours(2.0), TWO), simulated_lesson(&class, HOUR, TWO)] {
            let of_groups: u64 = answer.groups.iter().map(|group| group.cells).sum();
            prop_assert_eq!(of_groups, answer.all.cells);
            let shares: f64 = answer.kinds.iter().map(|kind| kind.cells.mean).sum();
            prop_assert!(answer.all.cells == 0 || (shares - 1.0).abs() < 1e-9);
            let kinds = class.machines.iter().map(|machines| &machines.kind);
            let kinds = kinds.chain(class.pools.iter().map(|pool| &pool.kind));
            for (kind, used) in kinds.zip(&answer.kinds) {
                let is_able = |group: &Group| group.needs.iter().all(|need| kind.offer.meets(need));
                prop_assert!(class.groups.iter().any(is_able) || used.cells.mean == 0.0);
                prop_assert!(used.utilisation.mean <= 1.0 + 1e-9);
            }
            for (pool, used) in class.pools.iter().zip(&answer.kinds[class.machines.len()..]) {
                prop_assert!(used.machines.mean <= f64::from(pool.scaling.max) + 1e-9);
            }
        }
    }

    #[test]
    fn a_kind_whose_machines_nobody_can_use_changes_nothing(class in some_fleet(), count in 1..5_u32) {
        let groups = class.groups.iter().map(|group| Group {
            needs: group.needs.iter().cloned().chain([Requirement::GpuMemory { bytes: 16 << 30 }]).collect(),
            ..group.clone()
        });
        let class = Fleet { groups: groups.collect(), ..class };
        let small = machines(count, gpus("t4", 8));
        let more = Fleet { machines: class.machines.iter().cloned().chain([small]).collect(), ..class.clone() };
        let (without, with) = (fleet(&class, hours(2.0), TWO), fleet(&more, hours(2.0), TWO));
        prop_assert_eq!(format!("{:?}{:?}", without.groups, without.pools), format!("{:?}{:?}", with.groups, with.pools));
    }

    #[test]
    fn machines_that_nobody_distinguishes_are_of_one_kind(
        class in (1..30_usize, 1..4_u32, 1..4_u32), pools in some_pools(),
    ) {
        let (count, some, others) = class;
        let of = |machines| Fleet { groups: vec![people(count, &[])], machines, pools: pools.clone() };
        let one = of(vec![machines(some + others, gpus("a100", 80))]);
        let two = of(vec![machines(some, gpus("a100", 80)), machines(others, gpus("t4", 16))]);
        for (one, two) in [
            (fleet(&one, hours(2.0), TWO), fleet(&two, hours(2.0), TWO)),
            (simulated_lesson(&one, HOUR, TWO), simulated_lesson(&two, HOUR, TWO)),
        ] {
            prop_assert_eq!(experience(&one), experience(&two));
        }
    }
}
