//! Which machines the pools request, by the broker's rules.

use super::{MachineKind, Machines, Pool, count, ms, world::World};
use baton_scheduling::{
    pools::{self, Floor, Present, Terms, Waiting},
    queue::in_queue_order,
};

impl World<'_> {
    /// Requests the machines that the pools should have.
    pub(super) fn request(&mut self) {
        let floors = self.floors();
        let pools: Vec<(Terms, Present)> = (self.fleet.pools.iter().zip(&floors).enumerate())
            .map(|(number, (pool, floor))| {
                let min = pool.terms.min.max(floor.workers);
                let terms = Terms { min, ..pool.terms };
                (terms, self.present(number))
            })
            .collect();
        let demands = pools::demands(&self.late(), &pools);
        for (number, (terms, present)) in pools.iter().enumerate() {
            for _ in 0..pools::to_start(terms, &demands[number], present) {
                let kept = self.machines_of(number).filter(|machine| machine.kept);
                let is_kept = kept.count() < self.fleet.pools[number].terms.min as usize;
                self.start_machine(number, is_kept);
            }
            let floor = floors[number];
            let staying = self.machines_of_mut(number);
            for machine in staying
                .filter(|machine| !machine.draining)
                .take(floor.workers as usize)
            {
                machine.stays_until = floor.until_ms as f64 / 1e3;
            }
        }
    }

    fn floors(&self) -> Vec<Floor> {
        let now_ms = ms(self.now);
        let present = self.lessons.iter().filter(|lesson| lesson.end_ms > now_ms);
        let present: Vec<_> = present.cloned().collect();
        let pools = self.fleet.pools.iter();
        let pools: Vec<_> = pools.map(|pool| (pool.terms, pool.as_pool())).collect();
        let others = self.fleet.machines.iter().map(Machines::slots).sum();
        pools::floors(&present, &pools, others, now_ms)
    }

    fn present(&self, pool: usize) -> Present {
        let open = self.machines_of(pool).filter(|machine| !machine.draining);
        Present {
            running: open.clone().map(|machine| machine.running).sum(),
            up: count(open.clone().filter(|machine| machine.came).count()),
            pending: count(open.filter(|machine| !machine.came).count()),
            slots: self.fleet.pools[pool].kind.slots,
            failures: 0,
        }
    }

    /// The waiting cells that the present machines do not start in time, in queue order.
    fn late(&mut self) -> Vec<Waiting> {
        self.rank();
        let groups = &self.fleet.groups;
        let open = self.machines.iter();
        let open = open.filter(|machine| machine.came && !machine.draining);
        let open: Vec<usize> = open.map(|machine| machine.kind).collect();
        // The seconds of work that machines for the group do in one second.
        let speed = |group: usize| -> f64 {
            let able = open.iter().filter(|kind| self.fits[group][**kind]);
            let speed = |kind: &usize| {
                let MachineKind { slots, speed, .. } = self.kinds[*kind];
                f64::from(*slots) * speed
            };
            able.map(speed).sum()
        };
        let speeds: Vec<f64> = (0..groups.len()).map(speed).collect();
        let runs: Vec<f64> = groups.iter().map(|group| group.course.mean_run()).collect();
        let compete = |one: usize, other: usize| {
            let mut kinds = open.iter();
            kinds.any(|kind| self.fits[one][*kind] && self.fits[other][*kind])
        };
        // Seconds of work until the next cell of each group may start.
        let mut before = vec![0.0; groups.len()];
        let mut late = Vec::new();
        for job in in_queue_order(&self.jobs) {
            let group = self.group_of(job);
            for (other, before) in before.iter_mut().enumerate() {
                if compete(group, other) {
                    *before += runs[group];
                }
            }
            let starts_ms = before[group] / speeds[group] * 1e3;
            let is_late =
                |pool: &Pool| speeds[group] == 0.0 || starts_ms > pool.terms.target_wait_ms as f64;
            let pools = self
                .fleet
                .pools
                .iter()
                .zip(self.fleet.machines.len()..)
                .enumerate();
            let pools = pools.filter(|(_, (pool, kind))| self.fits[group][*kind] && is_late(pool));
            let pools: Vec<usize> = pools.map(|(number, _)| number).collect();
            if !pools.is_empty() {
                late.push(Waiting {
                    work_ms: (runs[group] * 1e3) as u64,
                    pools,
                });
            }
        }
        late
    }
}
