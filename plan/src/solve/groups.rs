//! Groups of states, and the chain of groups.

use super::{Band, Chain, FLOOR, RARE};
use std::ops::Range;

/// The group of every state. Groups, and the states within one, are numbered so that transitions
/// only lead to near numbers.
pub(crate) struct Groups {
    pub(crate) of: Vec<u32>,
    pub(crate) count: usize,
}

/// What can be computed about groups in advance.
pub(super) struct Blocks<'groups> {
    pub(super) groups: &'groups Groups,
    /// Where each group begins in `states`, with one more entry for the end.
    begins: Vec<usize>,
    states: Vec<u32>,
    /// The position of each state in its group.
    pub(super) place: Vec<u32>,
    /// The sum of the rates from each state to other groups.
    pub(super) outward: Vec<f64>,
    /// Transitions between groups: from, to, and the rate.
    across: Vec<(u32, u32, f64)>,
    /// The largest distance between the numbers of two groups with a transition, and likewise of
    /// two states in a group.
    reach: usize,
    pub(super) reach_inside: usize,
}

impl<'groups> Blocks<'groups> {
    pub(super) fn of(chain: &Chain, groups: &'groups Groups) -> Self {
        let mut begins = vec![0; groups.count + 1];
        for group in &groups.of {
            begins[*group as usize + 1] += 1;
        }
        for group in 0..groups.count {
            begins[group + 1] += begins[group];
        }
        let mut next = begins.clone();
        let mut states = vec![0; chain.len()];
        let mut place = Vec::with_capacity(chain.len());
        for (state, group) in groups.of.iter().enumerate() {
            let group = *group as usize;
            states[next[group]] = state as u32;
            place.push((next[group] - begins[group]) as u32);
            next[group] += 1;
        }
        let mut outward = vec![0.0; chain.len()];
        let mut across = Vec::new();
        let (mut reach, mut reach_inside) = (0, 0);
        for state in 0..chain.len() {
            for &(from, rate) in chain.incoming_of(state) {
                let from = from as usize;
                let distance = groups.of[from].abs_diff(groups.of[state]);
                if distance == 0 {
                    reach_inside = reach_inside.max(place[from].abs_diff(place[state]));
                } else {
                    reach = reach.max(distance);
                    outward[from] += rate;
                    across.push((from as u32, state as u32, rate));
                }
            }
        }
        Self {
            groups,
            begins,
            states,
            place,
            outward,
            across,
            reach: reach as usize,
            reach_inside: reach_inside as usize,
        }
    }

    pub(super) fn states_of(&self, group: usize) -> &[u32] {
        &self.states[self.begins[group]..self.begins[group + 1]]
    }

    pub(super) fn group_of(&self, state: usize) -> usize {
        self.groups.of[state] as usize
    }

    /// Rescales each group to its weight in the chain of groups.
    pub(super) fn correct(&self, probabilities: &mut [f64]) {
        let mut weights = vec![0.0; self.groups.count];
        for (group, probability) in self.groups.of.iter().zip(&*probabilities) {
            weights[*group as usize] += probability;
        }
        let mut band = Band::new(self.groups.count, self.reach);
        for (from, to, rate) in &self.across {
            let (from, to) = (*from as usize, *to as usize);
            let (source, target) = (self.group_of(from), self.group_of(to));
            band.add(source, target, probabilities[from] * rate);
        }
        band.divide(&weights);
        let exact = band.solve(1.0);
        for (weight, exact) in weights.iter_mut().zip(exact) {
            *weight = exact / *weight;
        }
        for (group, probability) in self.groups.of.iter().zip(probabilities) {
            *probability = (*probability * weights[*group as usize]).max(FLOOR);
        }
    }

    /// The range of a group's likely states, extended on both sides so that others may become likely.
    pub(super) fn likely(&self, group: usize, probabilities: &[f64]) -> Range<usize> {
        let (states, more) = (self.states_of(group), self.reach_inside);
        let is_likely = |state: &u32| probabilities[*state as usize] > RARE;
        let first = states.iter().position(is_likely).unwrap_or(0);
        let last = states.iter().rposition(is_likely).unwrap_or(0);
        first.saturating_sub(more)..(last + more + 1).min(states.len())
    }
}
