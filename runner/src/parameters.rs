//! `-p name=value` and `--each name=values`: variables that a run sets in its notebook.

use crate::value::ParameterValue;
use std::collections::HashSet;

/// The most jobs that one command may make.
pub const MOST_JOBS: usize = 1000;

/// The names that Python does not assign: `keyword.kwlist`, and `__debug__`.
const KEYWORDS: [&str; 36] = [
    "False",
    "None",
    "True",
    "__debug__",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
];

/// A variable that is set in a notebook before it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub value: ParameterValue,
}

/// A variable as the command line gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    pub name: String,
    values: Values,
}

#[derive(Debug, Clone, PartialEq)]
enum Values {
    /// The same value in all jobs.
    One(ParameterValue),
    /// One of these values in each job.
    Each(Vec<ParameterValue>),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidParameter {
    #[error(
        "`{0}` is not a parameter\nhint: write name=value, such as -p epochs=5 or -p model=resnet18"
    )]
    NoName(String),
    #[error("`{0}` is a keyword of Python, so it cannot be the name of a parameter")]
    Keyword(String),
    #[error(
        "`{0}` has no values\nhint: write name=value,value, a range or a JSON list, such as --each seed=1..20 or --each model=resnet18,vit"
    )]
    NoValues(String),
    #[error(
        "`{0}` is not a range of whole numbers\nhint: write 1..20 or 0..100..10; the text itself is '\"1..20\"'"
    )]
    NoRange(String),
    #[error(
        "`{0}` makes {1} jobs; the limit is {MOST_JOBS}\nhint: run the values in several parts"
    )]
    TooMany(String, u128),
    #[error(
        "These parameters make {0} jobs; the limit is {MOST_JOBS}\nhint: run them in several parts"
    )]
    TooManyTogether(u128),
    #[error(
        "The parameter {0} is given more than once\nhint: --each {0}=a,b runs a job for each value"
    )]
    Twice(String),
}

impl std::str::FromStr for Parameter {
    type Err = InvalidParameter;

    fn from_str(text: &str) -> Result<Self, InvalidParameter> {
        let (name, value) = parts(text)?;
        Ok(Self {
            name: name.to_owned(),
            value: ParameterValue::read(value),
        })
    }
}

fn parts(text: &str) -> Result<(&str, &str), InvalidParameter> {
    let parts = text.split_once('=').filter(|(name, _)| is_name(name));
    let (name, value) = parts.ok_or_else(|| InvalidParameter::NoName(text.to_owned()))?;
    match KEYWORDS.contains(&name) {
        true => Err(InvalidParameter::Keyword(name.to_owned())),
        false => Ok((name, value)),
    }
}

impl Given {
    /// `-p`: a range of integers, such as `1..20`, stands for each of them; anything else is one value.
    ///
    /// # Errors
    /// If it has no name, or the range is invalid or too large.
    pub fn one(text: &str) -> Result<Self, InvalidParameter> {
        let (name, value) = parts(text)?;
        let values = match range(text, value)? {
            Some(numbers) => Values::Each(numbers),
            None => Values::One(ParameterValue::read(value)),
        };
        let name = name.to_owned();
        Ok(Self { name, values })
    }

    /// `--each`: a range, a JSON list, or values separated by commas.
    ///
    /// # Errors
    /// If it has no name, no values or too many, or the range is invalid.
    pub fn each(text: &str) -> Result<Self, InvalidParameter> {
        let (name, listed) = parts(text)?;
        let values = match (range(text, listed)?, ParameterValue::read_json(listed)) {
            (Some(numbers), _) => numbers,
            (None, Some(ParameterValue::List(values))) => values,
            (None, _) if listed.is_empty() => Vec::new(),
            (None, _) => listed.split(',').map(ParameterValue::read).collect(),
        };
        if values.is_empty() {
            return Err(InvalidParameter::NoValues(text.to_owned()));
        }
        within_limit(text, values.len() as u128)?;
        let values = Values::Each(values);
        let name = name.to_owned();
        Ok(Self { name, values })
    }

    fn is_each(&self) -> bool {
        matches!(self.values, Values::Each(_))
    }

    fn values(&self) -> &[ParameterValue] {
        match &self.values {
            Values::One(value) => std::slice::from_ref(value),
            Values::Each(values) => values,
        }
    }
}

/// `FIRST..LAST` including both ends, ascending or descending, or `FIRST..LAST..STEP`, like a shell's braces.
/// None if the text has another form.
fn range(text: &str, value: &str) -> Result<Option<Vec<ParameterValue>>, InvalidParameter> {
    let numbers: Vec<&str> = value.split("..").collect();
    if !(2..=3).contains(&numbers.len()) || !numbers.iter().all(|text| is_whole_number(text)) {
        return Ok(None);
    }
    let numbers: Option<Vec<i64>> = numbers.iter().map(|text| text.parse().ok()).collect();
    let (first, last, step) = match numbers.as_deref() {
        Some([first, last]) => (i128::from(*first), i128::from(*last), 1),
        Some([first, last, step]) if *step != 0 => {
            (i128::from(*first), i128::from(*last), step.unsigned_abs())
        }
        _ => return Err(InvalidParameter::NoRange(text.to_owned())),
    };
    let count = (last - first).unsigned_abs() / u128::from(step) + 1;
    within_limit(text, count)?;
    let step = i128::from(step) * (last - first).signum();
    let numbers = (0..i128::try_from(count).unwrap_or_default())
        .map(|number| ParameterValue::Number((first + number * step).to_string()));
    Ok(Some(numbers.collect()))
}

fn is_whole_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.chars().all(|letter| letter.is_ascii_digit())
}

fn within_limit(text: &str, count: u128) -> Result<(), InvalidParameter> {
    match count <= MOST_JOBS as u128 {
        true => Ok(()),
        false => Err(InvalidParameter::TooMany(text.to_owned(), count)),
    }
}

/// The parameters of one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Combination {
    /// All parameters, in the order of the command line.
    pub parameters: Vec<Parameter>,
    /// Those that differ between the jobs; none if the jobs are not an array.
    pub different: Vec<Parameter>,
}

/// The parameters of each job: all combinations of the values. The last parameter varies fastest.
///
/// # Errors
/// If there are too many, or a name is given twice and has several values.
pub fn combinations(given: &[Given]) -> Result<Vec<Combination>, InvalidParameter> {
    let mut names = HashSet::new();
    for one in given {
        let others = given.iter().filter(|other| other.name == one.name);
        if !names.insert(&one.name) && others.into_iter().any(Given::is_each) {
            return Err(InvalidParameter::Twice(one.name.clone()));
        }
    }
    let counts = given.iter().map(|one| one.values().len() as u128);
    let count = counts.fold(1, u128::saturating_mul);
    if count > MOST_JOBS as u128 {
        return Err(InvalidParameter::TooManyTogether(count));
    }
    let mut made = vec![Combination {
        parameters: Vec::new(),
        different: Vec::new(),
    }];
    for one in given {
        let with = |combination: &Combination| {
            let combination = combination.clone();
            one.values().iter().map(move |value| {
                let mut combination = combination.clone();
                let parameter = Parameter {
                    name: one.name.clone(),
                    value: value.clone(),
                };
                if one.is_each() {
                    combination.different.push(parameter.clone());
                }
                combination.parameters.push(parameter);
                combination
            })
        };
        made = made.iter().flat_map(with).collect();
    }
    Ok(made)
}

/// Python's rule for identifiers.
fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|first| first == '_' || unicode_ident::is_xid_start(first))
        && letters.all(unicode_ident::is_xid_continue)
}

impl Parameter {
    /// A Python assignment.
    pub(crate) fn python(&self) -> String {
        format!("{} = {}", self.name, self.value.python())
    }

    /// The value as part of a file name.
    #[must_use]
    pub fn value_in_names(&self) -> String {
        const LONGEST: usize = 60;
        let text = match &self.value {
            ParameterValue::Text(text) => text.clone(),
            ParameterValue::List(_) | ParameterValue::Dict(_) => self.value.json().to_string(),
            value => value.python(),
        };
        let safe = |letter: char| match letter {
            letter if letter.is_alphanumeric() || "-+._,".contains(letter) => letter,
            _ => '_',
        };
        text.chars().take(LONGEST).map(safe).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(text: &str, python: &str) {
        assert_eq!(text.parse::<Parameter>().unwrap().python(), python);
    }

    #[test]
    fn values_are_json_or_text() {
        check("epochs=5", "epochs = 5");
        check("rate=1e-3", "rate = 1e-3");
        check("flag=False", "flag = False");
        check("name=resnet18", "name = \"resnet18\"");
        check("name=\"5\"", "name = \"5\"");
        check("path=/a=b", "path = \"/a=b\"");
        check("flags=[true, null]", "flags = [True, None]");
        check("of={\"a\": \"ü\\n\"}", "of = {\"a\": \"ü\\n\"}");
        check("nothing=", "nothing = \"\"");
        for wrong in ["epochs", "=5", "5a=1", "a b=1", "-x=1", "x²=1"] {
            assert!(wrong.parse::<Parameter>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_those_that_python_assigns() {
        check("größe=1", "größe = 1");
        check("match=1", "match = 1");
        for keyword in ["lambda", "None", "__debug__"] {
            let text = format!("{keyword}=0.1");
            for given in [Given::one(&text), Given::each(&text)] {
                let error = InvalidParameter::Keyword(keyword.to_owned());
                assert_eq!(given, Err(error));
            }
        }
    }

    /// The values as Python, separated by spaces; a single one in brackets.
    fn values(given: &Given) -> String {
        let each: Vec<String> = given.values().iter().map(ParameterValue::python).collect();
        match given.is_each() {
            true => each.join(" "),
            false => format!("[{}]", each.join(" ")),
        }
    }

    #[track_caller]
    fn check_values(given: Result<Given, InvalidParameter>, expected: &str) {
        assert_eq!(values(&given.unwrap()), expected);
    }

    #[test]
    fn a_range_of_whole_numbers_is_many_values() {
        check_values(Given::one("seed=1..4"), "1 2 3 4");
        check_values(Given::one("seed=2..-1"), "2 1 0 -1");
        check_values(Given::one("seed=0..10..4"), "0 4 8");
        check_values(Given::one("seed=10..0..-5"), "10 5 0");
        check_values(Given::one("seed=7..7"), "7");
        let largest = format!("seed={0}..{0}", i64::MAX);
        check_values(Given::one(&largest), &i64::MAX.to_string());
    }

    #[test]
    fn text_with_dots_is_text() {
        for text in [
            "../data",
            "1..",
            "..5",
            "a..b",
            "1...5",
            "1..2..3..4",
            "0.1..0.5",
        ] {
            check_values(Given::one(&format!("x={text}")), &format!("[\"{text}\"]"));
        }
        check_values(Given::one("x=\"1..5\""), "[\"1..5\"]");
        check_values(Given::one("x=[1, 2]"), "[[1, 2]]");
        check_values(Given::one("x=1,2"), "[\"1,2\"]");
    }

    #[test]
    fn a_range_that_stands_for_no_numbers_is_refused() {
        for text in ["x=1..10..0", "x=1..99999999999999999999999"] {
            let wrong = Err(InvalidParameter::NoRange(text.to_owned()));
            assert_eq!(Given::one(text), wrong);
            assert_eq!(Given::each(text), wrong);
        }
        check_values(Given::one("x=\"1..10..0\""), "[\"1..10..0\"]");
    }

    #[test]
    fn each_is_a_range_a_list_or_words() {
        check_values(Given::each("x=1..3"), "1 2 3");
        check_values(Given::each("x=0.1,0.01,small"), "0.1 0.01 \"small\"");
        check_values(Given::each("x=[1, \"a,b\", [2]]"), "1 \"a,b\" [2]");
        check_values(Given::each("x=only"), "\"only\"");
        for wrong in ["x=", "x=[]"] {
            let error = Given::each(wrong).unwrap_err();
            assert_eq!(error, InvalidParameter::NoValues(wrong.to_owned()));
        }
    }

    #[test]
    fn each_value_meets_each_other() {
        let given = ["a=1..2", "b=x", "c=3..4"].map(|text| Given::one(text).unwrap());
        let made = combinations(&given).unwrap();
        let lines = |parameters: &[Parameter]| {
            let lines: Vec<String> = parameters.iter().map(Parameter::python).collect();
            lines.join("; ")
        };
        let all: Vec<String> = made.iter().map(|one| lines(&one.parameters)).collect();
        assert_eq!(
            all,
            [
                "a = 1; b = \"x\"; c = 3",
                "a = 1; b = \"x\"; c = 4",
                "a = 2; b = \"x\"; c = 3",
                "a = 2; b = \"x\"; c = 4",
            ]
        );
        assert_eq!(lines(&made[2].different), "a = 2; c = 3");
        let [single] = &combinations(&[Given::one("a=1").unwrap()]).unwrap()[..] else {
            panic!("one job");
        };
        assert!(single.different.is_empty());
    }

    #[test]
    fn there_is_a_limit() {
        assert_eq!(Given::one("x=1..1000").unwrap().values().len(), 1000);
        for text in ["x=1..1001", "x=-9223372036854775808..9223372036854775807"] {
            let error = Given::one(text).unwrap_err();
            assert!(matches!(error, InvalidParameter::TooMany(..)), "{error}");
        }
        let given = ["a=1..32", "b=1..32"].map(|text| Given::one(text).unwrap());
        let error = combinations(&given).unwrap_err();
        assert_eq!(error, InvalidParameter::TooManyTogether(1024));
        let given = ["a=1..2", "a=3"].map(|text| Given::one(text).unwrap());
        let error = combinations(&given).unwrap_err();
        assert_eq!(error, InvalidParameter::Twice("a".to_owned()));
        let given = ["a=1", "a=3"].map(|text| Given::one(text).unwrap());
        assert_eq!(combinations(&given).unwrap()[0].parameters.len(), 2);
    }

    #[test]
    fn values_are_parts_of_names() {
        for (text, name) in [
            ("x=0.1", "0.1"),
            ("x=../a b", ".._a_b"),
            ("x=1e-3", "1e-3"),
            ("x=True", "True"),
            ("x=false", "False"),
            ("x=None", "None"),
            ("x=[1, \"é\"]", "_1,_é__"),
        ] {
            assert_eq!(text.parse::<Parameter>().unwrap().value_in_names(), name);
        }
    }
}
