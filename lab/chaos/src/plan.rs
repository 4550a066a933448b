//! Which faults, in which order: by the seed alone, so that a run can be repeated. Pure.

use super::fault::Fault;

/// How long it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// So many rounds of all faults.
    Rounds(u32),
    /// Until this long has passed; the fault under way is finished.
    For(std::time::Duration),
}

/// The order of the faults, for ever. The first round is in the faults' own order, so that the
/// short form goes through the same each time; the others are shuffled.
#[derive(Debug)]
pub struct Plan {
    faults: Vec<&'static Fault>,
    round: Vec<&'static Fault>,
    random: fastrand::Rng,
}

impl Plan {
    /// Of at least one fault.
    pub fn new(faults: Vec<&'static Fault>, seed: u64) -> Self {
        let round = faults.iter().rev().copied().collect();
        Self { faults, round, random: fastrand::Rng::with_seed(seed) }
    }

    /// One that begins with a shuffled round.
    pub fn random(faults: Vec<&'static Fault>, seed: u64) -> Self {
        Self { round: Vec::new(), ..Self::new(faults, seed) }
    }
}

impl Iterator for Plan {
    type Item = &'static Fault;

    fn next(&mut self) -> Option<Self::Item> {
        if self.round.is_empty() {
            self.round = self.faults.clone();
            self.random.shuffle(&mut self.round);
        }
        self.round.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::choose;

    fn names(plan: Plan, count: usize) -> Vec<&'static str> {
        plan.take(count).map(|fault| fault.name).collect()
    }

    #[test]
    fn the_first_round_is_in_order_and_each_has_every_fault() {
        let all = choose(&[]).unwrap();
        let known: Vec<_> = all.iter().map(|fault| fault.name).collect();
        let planned = names(Plan::new(all.clone(), 1), 3 * known.len());
        assert_eq!(planned[..known.len()], known);
        for round in planned.chunks(known.len()) {
            let mut round = round.to_vec();
            round.sort_unstable();
            let mut known = known.clone();
            known.sort_unstable();
            assert_eq!(round, known);
        }
    }

    #[test]
    fn the_seed_decides() {
        let plan = |seed| names(Plan::random(choose(&[]).unwrap(), seed), 40);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }
}
