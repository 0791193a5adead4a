//! Machines, pools and people that differ, as `baton plan` takes them: `4 a100 80G, 8 t4 16G`.
//!
//! Each begins with a number. Then come the words of `%%gpu --gpu` and `%%gpu --mem`, and other keys
//! of the settings (`offers` of a pool, `needs` of a course) as `KEY=VALUE`.

use super::PoolSize;
use crate::settings::Value;
use baton_broker::{NeedsSection, OffersSection};
use baton_plan::Declared;
use baton_protocol::Requirement;
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, time::Duration};

/// Machines of one kind that are always there.
#[derive(Debug, Clone)]
pub(crate) struct MachinesArgument {
    /// As it was written.
    pub(crate) name: String,
    pub(crate) count: u16,
    pub(crate) kind: KindArgument,
}

#[derive(Debug, Clone)]
pub(crate) struct KindArgument {
    pub(crate) declared: Declared,
    pub(crate) slots: u32,
    pub(crate) speed: f64,
}

/// A pool of this size, or the one with this name in the configuration file.
#[derive(Debug, Clone)]
pub(crate) struct PoolArgument {
    pub(crate) name: String,
    pub(crate) size: Option<PoolSize>,
    pub(crate) kind: KindArgument,
    pub(crate) start: Option<Duration>,
}

/// Some of the people.
#[derive(Debug, Clone)]
pub(crate) struct GroupArgument {
    /// What they need, as it was written; empty if they need nothing particular.
    pub(crate) name: String,
    pub(crate) people: u16,
    pub(crate) needs: Vec<Requirement>,
    pub(crate) edit: Option<Duration>,
    pub(crate) run: Option<Duration>,
}

const OF_MACHINES: [&str; 4] = ["gpu", "gpu_memory", "compute_capability", "memory"];
const LABEL: &str = "label";

impl MachinesArgument {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (count, words) = counted(text, "4 a100 80G")?;
        Ok(Self {
            name: text.to_owned(),
            count,
            kind: KindArgument::read(&mut Words::parse(words, &["slots", "speed"])?)?,
        })
    }
}

impl KindArgument {
    fn read(words: &mut Words) -> Result<Self, String> {
        let number = |key: &str, text: Option<String>| {
            let number = text.as_deref().unwrap_or("1").parse::<f64>();
            let number = number
                .ok()
                .filter(|number| number.is_finite() && *number > 0.0);
            number.ok_or_else(|| format!("{key}= expects a number above 0"))
        };
        let slots = number("slots", words.own.remove("slots"))?;
        let speed = number("speed", words.own.remove("speed"))?;
        if slots.fract() > 0.0 || slots > MOST_SLOTS {
            return Err(format!("slots= expects a whole number up to {MOST_SLOTS}"));
        }
        let offers: OffersSection = words.section()?;
        Ok(Self {
            declared: offers.read().map_err(|error| format!("{error:#}"))?,
            slots: slots as u32,
            speed,
        })
    }
}

const MOST_SLOTS: f64 = 1000.0;

impl PoolArgument {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (first, words) = text.split_once(' ').unwrap_or((text, ""));
        let is_size = first
            .chars()
            .all(|letter| letter.is_ascii_digit() || letter == '-');
        let size = is_size.then(|| PoolSize::from_text(first)).transpose()?;
        let mut words = Words::parse(words, &["slots", "speed", "start"])?;
        if size.is_none() && !words.table.is_empty() {
            return Err(format!(
                "expected two numbers such as 0-4 before the machines; for {first}, which is not a size, the configuration file says what the machines are"
            ));
        }
        Ok(Self {
            name: match size {
                Some(_) => text.to_owned(),
                None => first.to_owned(),
            },
            size,
            start: words.time("start")?,
            kind: KindArgument::read(&mut words)?,
        })
    }
}

impl GroupArgument {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (people, words) = counted(text, "50 a100 20G")?;
        let name = words.to_owned();
        let mut words = Words::parse(words, &["edit", "run"])?;
        let (edit, run) = (words.time("edit")?, words.time("run")?);
        let needs: NeedsSection = words.section()?;
        Ok(Self {
            name,
            people,
            needs: needs.read().map_err(|error| format!("{error:#}"))?,
            edit,
            run,
        })
    }
}

/// The number at the beginning, and what follows.
fn counted<'text>(text: &'text str, example: &str) -> Result<(u16, &'text str), String> {
    let text = text.trim();
    let (count, words) = text.split_once(' ').unwrap_or((text, ""));
    let count = count.parse().ok().filter(|count: &u16| *count > 0);
    let count = count.ok_or_else(|| {
        format!(
            "expected a number from 1 to {} at the beginning of {text:?}, as in {example}",
            u16::MAX
        )
    })?;
    Ok((count, words.trim()))
}

/// The words after the number.
struct Words {
    /// Keys of the settings.
    table: toml::Table,
    /// Other keys.
    own: BTreeMap<String, String>,
}

impl Words {
    fn parse(text: &str, own_keys: &[&str]) -> Result<Self, String> {
        let mut model = Vec::new();
        let mut words = Self {
            table: toml::Table::new(),
            own: BTreeMap::new(),
        };
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) if own_keys.contains(&key) => {
                    words.own.insert(key.to_owned(), value.to_owned());
                }
                Some((key, value)) if OF_MACHINES.contains(&key) => words.set(key, value)?,
                Some((LABEL, label)) => {
                    let labels = words.table.entry("labels");
                    let labels = labels.or_insert_with(|| toml::Value::Array(Vec::new()));
                    labels
                        .as_array_mut()
                        .into_iter()
                        .for_each(|labels| labels.push(label.into()));
                }
                Some((key, _)) => {
                    let known = [&OF_MACHINES[..], &[LABEL], own_keys].concat().join(", ");
                    return Err(format!("{key}= is unknown; known are {known}"));
                }
                None if is_size(word) => words.set("gpu_memory", word)?,
                None => model.push(word),
            }
        }
        if !model.is_empty() {
            words.set("gpu", &model.join(" "))?;
        }
        Ok(words)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match self.table.insert(key.to_owned(), value.into()) {
            None => Ok(()),
            Some(first) => Err(format!("{key} is given twice: {first} and {value:?}")),
        }
    }

    fn section<Section: DeserializeOwned>(&mut self) -> Result<Section, String> {
        let table = std::mem::take(&mut self.table);
        table.try_into().map_err(|error| error.message().to_owned())
    }

    fn time(&mut self, key: &str) -> Result<Option<Duration>, String> {
        let text = self.own.remove(key);
        let time =
            text.map(|text| Duration::from_text(&text).map_err(|error| format!("{key}= {error}")));
        time.transpose()
    }
}

/// Whether it is a number with a unit of memory: `80G`, but not the model `4090` or `3g`.
fn is_size(word: &str) -> bool {
    let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
    unit.len() < word.len() && ["M", "G", "T"].iter().any(|known| unit.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_in_the_words_of_cells_and_settings() {
        let machines = MachinesArgument::parse(
            "4 rtx 4090 24G slots=2 speed=1.5 label=room-2 label=new memory=64G",
        );
        let MachinesArgument {
            name: _,
            count,
            kind,
        } = machines.expect("it is valid");
        assert_eq!((count, kind.slots, kind.speed), (4, 2, 1.5));
        let expected = Declared {
            gpu: Some("rtx 4090".to_owned()),
            gpu_memory_bytes: Some(24 << 30),
            compute_capability: None,
            memory_bytes: Some(64 << 30),
            labels: Some(vec!["room-2".to_owned(), "new".to_owned()]),
            environments: None,
        };
        assert_eq!(kind.declared, expected);
        for (text, error) in [
            ("a100", "a number from 1 to"),
            ("0 a100", "a number from 1 to"),
            ("-4 a100", "a number from 1 to"),
            ("4 a100 80G 40G", "gpu_memory is given twice"),
            ("4 a100 slots=0", "slots= expects a number above 0"),
            ("4 a100 slots=1.5", "slots= expects a whole number"),
            ("4 a100 speed=fast", "speed= expects a number above 0"),
            (
                "4 a100 colour=red",
                "colour= is unknown; known are gpu, gpu_memory,",
            ),
            ("4 a100 memory=64", "memory: \"64\" is not a size"),
            (
                "4 a100 compute_capability=new",
                "is not a compute capability",
            ),
        ] {
            let message = MachinesArgument::parse(text).expect_err(text);
            assert!(message.contains(error), "{message}");
        }
    }

    #[test]
    fn a_pool_has_a_size_and_machines_or_a_name() {
        let pool = PoolArgument::parse("0-6 a100 80G slots=2 start=90s").expect("it is valid");
        assert_eq!(pool.size, Some(PoolSize { min: 0, max: 6 }));
        assert_eq!(
            (pool.kind.slots, pool.start),
            (2, Some(Duration::from_secs(90)))
        );
        let pool = PoolArgument::parse("slurm-gpu slots=2").expect("it is valid");
        assert_eq!((pool.name.as_str(), pool.size), ("slurm-gpu", None));
        for (text, error) in [
            ("6-0 a100", "two numbers such as 0-4"),
            ("-2", "two numbers such as 0-4"),
            (
                "slurm a100",
                "the configuration file says what the machines are",
            ),
            ("0-4 start=soon", "start= expected a duration"),
        ] {
            let message = PoolArgument::parse(text).expect_err(text);
            assert!(message.contains(error), "{message}");
        }
    }

    #[test]
    fn people_need_what_cells_and_courses_need() {
        let group = GroupArgument::parse("50 a100 20G run=5m").expect("it is valid");
        let needs = [
            Requirement::Gpu {
                model: "a100".to_owned(),
            },
            Requirement::GpuMemory { bytes: 20 << 30 },
        ];
        assert_eq!((group.people, &group.needs[..]), (50, &needs[..]));
        assert_eq!(
            (group.edit, group.run),
            (None, Some(Duration::from_secs(300)))
        );
        let message = GroupArgument::parse("50 a100 slots=2").expect_err("people have no slots");
        assert!(message.contains("slots= is unknown"), "{message}");
    }
}
