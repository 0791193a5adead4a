//! `baton plan --machines` and `--pool`: machines that differ, and machines that start and stop, in a
//! simulated course.

mod report;

use super::{Plan, read_rates};
use crate::{
    arguments::{GroupArgument, KindArgument, PoolArgument},
    settings::{Settings, SettingsError},
};
use anyhow::Context;
use baton_broker::PoolSettings;
use baton_humanize::approximate;
use baton_plan::{
    PastCell, PoolScaling, simulated_lesson,
    simulation::{
        Course, Fleet, Group, Length, MachineKind, Machines, PastWaits, Pool, Runs, Times, fleet,
    },
};
use baton_protocol::{Requirement, api::History};
use report::Names;
use serde_json::json;
use std::{fmt::Write, sync::Arc, time::Duration};

const HOUR: f64 = 3600.0;
const STEADY: Runs = Runs { count: 8, seed: 1 };
/// A lesson is short, so it takes more of them to be as certain.
const LESSONS: Runs = Runs { count: 24, seed: 1 };

struct Named {
    fleet: Fleet,
    names: Names,
}

/// Simulates people with these mean times.
pub(super) fn simulate(
    plan: &Plan,
    settings: impl Fn() -> Result<Settings, SettingsError>,
) -> anyhow::Result<String> {
    let people = plan.users;
    let groups = groups(plan)?;
    let named = Named::read(plan, groups, settings)?;
    let length = Length {
        warm_up: HOUR,
        measured: 8.0 * HOUR,
    };
    anyhow::ensure!(
        plan.lesson.is_none_or(|lesson| !lesson.is_zero()),
        "A lesson cannot take no time; an example is --lesson 90m"
    );
    let answer = match plan.lesson {
        Some(lesson) => simulated_lesson(&named.fleet, lesson.as_secs_f64(), LESSONS),
        None => fleet(&named.fleet, length, STEADY),
    };
    if plan.json {
        let mut json = report::json(&named.names, &answer);
        json["people"] = people.into();
        return Ok(format!("{json}\n"));
    }
    let times = match plan.lesson {
        Some(lesson) => format!(
            "{} lessons of {}",
            LESSONS.count,
            approximate(lesson.as_secs_f64())
        ),
        None => format!(
            "{} courses of {}",
            STEADY.count,
            approximate(length.measured)
        ),
    };
    let mut out = format!(
        "A person edits for {} between cells of {}, on average{}.\n\
         Simulated: {times}; ± is half the 99 % confidence interval.\n\n",
        approximate(plan.edit.as_secs_f64()),
        approximate(plan.run.as_secs_f64()),
        match have_own_times(&plan.groups) {
            true => ", unless a group has its own times",
            false => "",
        }
    );
    out.push_str(&report::waits(
        &named.names,
        &baton_humanize::people(people),
        &answer,
    ));
    out.push('\n');
    out.push_str(&report::machines(&named.names, &answer));
    let _ = writeln!(
        out,
        "\nCells wait {} on average, and 1 in 100 longer than {}.",
        approximate(answer.all.wait.mean),
        approximate(answer.all.waits[2].mean)
    );
    if plan.lesson.is_none() && named.is_alike() {
        let count: u32 = named
            .fleet
            .machines
            .iter()
            .map(|machines| machines.count)
            .sum();
        let _ = writeln!(
            out,
            "The machines are alike and take all cells, so the exact model applies: baton plan --users {people} --gpus {count}"
        );
    }
    Ok(out)
}

/// Replays the cells of a course's past.
pub(super) fn replay(
    plan: &Plan,
    past: &History,
    settings: impl Fn() -> Result<Settings, SettingsError>,
) -> anyhow::Result<String> {
    let cells: Vec<_> = past.cells.iter().map(PastCell::from).collect();
    let everyone = Group {
        course: Course::replayed(&cells),
        needs: Arc::default(),
    };
    let named = Named::read(plan, vec![(String::new(), everyone)], settings)?;
    // Run until the last cell has ended, because there is only one past.
    let length = Length {
        warm_up: 0.0,
        measured: f64::INFINITY,
    };
    let answer = fleet(&named.fleet, length, Runs { count: 1, seed: 1 });
    anyhow::ensure!(
        answer.all.cells > 0,
        "The broker's history has no cell that ended\n\
         hint: use more --days, or --users, --edit and --run instead of --from-broker"
    );
    let was = PastWaits::of(&cells);
    let days = plan.days;
    if plan.json {
        let mut json = report::json(&named.names, &answer);
        json["days"] = days.into();
        json["was"] = json!({ "wait": was.mean, "waits": was.waits });
        return Ok(format!("{json}\n"));
    }
    Ok(format!(
        "The {} cells of the last {days} days on {}\n\n{}\n{}",
        answer.all.cells,
        named.names.machines.join(", "),
        report::beside_the_past(&was, &answer.all),
        report::machines(&named.names, &answer)
    ))
}

/// The people, in groups with the same needs; those who are in no other group come last.
fn groups(plan: &Plan) -> anyhow::Result<Vec<(String, Group)>> {
    read_rates(plan)?;
    let mut others = plan.users;
    let mut groups = Vec::new();
    let group = |people: u16, needs: &[Requirement], edit: f64, run: f64| Group {
        course: Course::Drawn {
            people: people.into(),
            edit: Times::Exponential(edit),
            run: Times::Exponential(run),
        },
        needs: needs.into(),
    };
    let (edit, run) = (plan.edit.as_secs_f64(), plan.run.as_secs_f64());
    for said in &plan.groups {
        others = others.checked_sub(said.people).with_context(|| {
            format!(
                "--groups has more people than there are: --users is {}",
                plan.users
            )
        })?;
        let seconds = |time: Option<Duration>, usual| time.map_or(usual, |time| time.as_secs_f64());
        let (edit, run) = (seconds(said.edit, edit), seconds(said.run, run));
        anyhow::ensure!(
            edit > 0.0 && run > 0.0,
            "A time cannot be zero; the shortest is 1 ms"
        );
        let name = match said.name.as_str() {
            "" => baton_humanize::people(said.people),
            words => format!("{}: {words}", baton_humanize::people(said.people)),
        };
        groups.push((name, group(said.people, &said.needs, edit, run)));
    }
    if others > 0 {
        let name = format!("{others} others");
        groups.push((name, group(others, &[], edit, run)));
    }
    Ok(groups)
}

fn have_own_times(groups: &[GroupArgument]) -> bool {
    let mut groups = groups.iter();
    groups.any(|group| group.edit.is_some() || group.run.is_some())
}

impl Named {
    fn read(
        plan: &Plan,
        groups: Vec<(String, Group)>,
        settings: impl Fn() -> Result<Settings, SettingsError>,
    ) -> anyhow::Result<Self> {
        let (machines, pools) = (plan.machines.iter(), plan.pool.iter());
        let of_pools = pools.clone().map(|said| format!("pool {}", said.name));
        let names = machines.clone().map(|said| said.name.trim().to_owned());
        let mut known = None;
        let pool = |said: &PoolArgument| match said.size {
            Some(size) => Ok(Pool {
                scaling: PoolScaling {
                    min: size.min,
                    max: size.max,
                    target_wait_ms: u64::try_from(plan.target_wait.as_millis())?,
                },
                kind: kind(&said.kind, &said.kind.declared),
                start: start(plan, said),
                idle: Some(plan.idle.as_secs_f64()),
                walltime: Some(plan.walltime.as_secs_f64()),
            }),
            None => {
                let known = match &known {
                    Some(known) => known,
                    None => known.insert(PoolSettings::read(&settings()?.pool.0)?),
                };
                configured(plan, said, known)
            }
        };
        let (groups, all): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let named = Self {
            names: Names {
                machines: names.chain(of_pools).collect(),
                groups,
            },
            fleet: Fleet {
                groups: all,
                machines: machines
                    .map(|said| Machines {
                        kind: kind(&said.kind, &said.kind.declared),
                        count: said.count.into(),
                    })
                    .collect(),
                pools: pools.map(pool).collect::<anyhow::Result<_>>()?,
            },
        };
        named.check()?;
        Ok(named)
    }

    /// Each cell needs a machine, or it would wait for ever.
    fn check(&self) -> anyhow::Result<()> {
        let groups = self.names.groups.iter().zip(&self.fleet.groups);
        for (name, group) in groups {
            let needs: Vec<String> = group.needs.iter().map(ToString::to_string).collect();
            anyhow::ensure!(
                self.fleet.meets(group),
                "There is no machine {} for {name}\n\
                 hint: the machines are {}; a property that is not written there counts as missing",
                needs.join(" and "),
                self.names.machines.join(", ")
            );
        }
        Ok(())
    }

    /// Whether there is an exact model: every machine takes every cell, one at a time and at the same speed.
    fn is_alike(&self) -> bool {
        let Fleet {
            groups,
            machines,
            pools,
        } = &self.fleet;
        let is_usual = |machines: &Machines| {
            let meets = |group: &Group| machines.kind.meets(&group.needs);
            machines.kind.slots == 1 && machines.kind.speed == 1.0 && groups.iter().all(meets)
        };
        groups.len() == 1 && pools.is_empty() && machines.iter().all(is_usual)
    }
}

/// A pool of the configuration file.
fn configured(plan: &Plan, said: &PoolArgument, known: &[PoolSettings]) -> anyhow::Result<Pool> {
    let pool = known.iter().find(|pool| pool.name() == said.name);
    let pool = pool.with_context(|| {
        let names: Vec<&str> = known.iter().map(PoolSettings::name).collect();
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        format!(
            "The configuration file has no pool {}\nhint: it has {names}; give a size for any other pool, such as --pool 0-4",
            said.name
        )
    })?;
    Ok(Pool {
        scaling: pool.scaling(),
        kind: kind(&said.kind, pool.offers()),
        start: start(plan, said),
        idle: pool.idle().map(|idle| idle.as_secs_f64()),
        walltime: pool.walltime().map(|walltime| walltime.as_secs_f64()),
    })
}

fn kind(said: &KindArgument, declared: &baton_plan::Declared) -> MachineKind {
    MachineKind {
        offer: Arc::new(declared.offer()),
        slots: said.slots,
        speed: said.speed,
    }
}

fn start(plan: &Plan, said: &PoolArgument) -> Times {
    Times::Fixed(said.start.unwrap_or(plan.start).as_secs_f64())
}
