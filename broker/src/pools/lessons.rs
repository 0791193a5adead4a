//! Workers for lessons: how many slots the people of a course need, and which workers stay for them.

use super::{PoolSettings, known::Known};
use crate::timetable;
use baton_broker_queue::pools::ComingLesson;
use baton_broker_store::{Store, StoreError};
use baton_scheduling::pools::{self, Floor, Kind, Lesson};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// The behaviour of a course changes slowly, so the result is cached.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// The slots that the people of a course need, as last computed.
#[derive(Default)]
pub(crate) struct Lessons {
    slots: HashMap<(String, u32), (Instant, u32)>,
}

impl Lessons {
    /// How many workers the lessons need from each pool.
    pub(super) async fn floors(
        &mut self,
        store: &Store,
        pools: &[(&PoolSettings, &Known)],
        (coming, other_slots): (&[ComingLesson], u32),
        now_ms: i64,
    ) -> Result<Vec<Floor>, StoreError> {
        let mut lessons = Vec::with_capacity(coming.len());
        for lesson in coming {
            let Some(first) = lesson.pools.first() else {
                continue;
            };
            let within_ms = pools[*first].0.terms.target_wait_ms;
            lessons.push(Lesson {
                slots: self.slots(store, lesson, within_ms, now_ms).await?,
                start_ms: lesson.span.start_ms,
                end_ms: lesson.span.end_ms,
                other_slots: lesson.other_slots,
                pools: lesson.pools.clone(),
            });
        }
        let kinds: Vec<_> = pools
            .iter()
            .map(|(settings, known)| {
                let kind = Kind {
                    slots: known.row.slots,
                    start_ms: known.start_ms(settings.start_limit),
                };
                (settings.terms, kind)
            })
            .collect();
        Ok(pools::floors(&lessons, &kinds, other_slots, now_ms))
    }

    async fn slots(
        &mut self,
        store: &Store,
        lesson: &ComingLesson,
        within_ms: u64,
        now_ms: i64,
    ) -> Result<u32, StoreError> {
        let key = (lesson.course.clone(), lesson.people);
        if let Some((counted, slots)) = self.slots.get(&key)
            && counted.elapsed() < COUNTED_AGAIN_AFTER
        {
            return Ok(*slots);
        }
        let rates = timetable::pace(store, &lesson.course, now_ms).await?;
        let within = Duration::from_millis(within_ms).as_secs_f64();
        let slots = timetable::enough_slots(rates, lesson.people, within).await;
        let slots = slots.unwrap_or(lesson.people);
        tracing::info!(
            "The lesson of {} people of {} needs {slots} slots",
            lesson.people,
            lesson.course
        );
        self.slots.insert(key, (Instant::now(), slots));
        Ok(slots)
    }
}

/// Which workers stay for the lessons: as many as the floor of their pool, in the order of their requests.
pub(super) fn stays(pools: &[Known], floors: &[Floor]) -> HashMap<String, i64> {
    let mut stays = HashMap::new();
    for (pool, floor) in pools.iter().zip(floors) {
        let staying = pool
            .lives
            .iter()
            .filter(|life| life.is_up() || life.is_pending());
        for life in staying.take(floor.workers as usize) {
            stays.insert(life.row.name.clone(), floor.until_ms);
        }
    }
    stays
}
