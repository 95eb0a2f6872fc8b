//! Label selectors in kubectl's notation (`app=web,tier!=db,zone in (a, b),!debug`).
//!
//! Same grammar and same limits as `kubectl -l`: what kubectl refuses is refused here,
//! so that a misspelt `spec.drain.skipSelector` never quietly selects something else.

use std::collections::{BTreeMap, BTreeSet};

/// A selector that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the label selector {selector:?} cannot be read: {why}")]
pub struct SelectorError {
    /// What was given.
    pub selector: String,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    DoesNotExist(String),
    GreaterThan(String, i64),
    LessThan(String, i64),
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let number = |key: &String| labels.get(key).and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => !labels.contains_key(key),
            Self::GreaterThan(key, bound) => number(key).is_some_and(|v| v > *bound),
            Self::LessThan(key, bound) => number(key).is_some_and(|v| v < *bound),
        }
    }
}

/// A parsed selector. All of its requirements must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelQuery {
    requirements: Vec<Requirement>,
}

impl LabelQuery {
    /// Reads `selector`. `None` where it is empty: an empty `--selector` of kubectl
    /// means "not given", and an empty `skipSelector` must not skip every pod.
    pub fn parse(selector: &str) -> Result<Option<Self>, SelectorError> {
        let requirements = Parser {
            tokens: tokens(selector),
            position: 0,
        }
        .requirements()
        .map_err(|why| SelectorError {
            selector: selector.to_owned(),
            why,
        })?;
        Ok((!requirements.is_empty()).then_some(Self { requirements }))
    }

    /// Whether `labels` satisfy every requirement.
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let none = BTreeMap::new();
        let labels = labels.unwrap_or(&none);
        self.requirements.iter().all(|r| r.matches(labels))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Symbol(&'static str),
    Unknown(String),
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn tokens(text: &str) -> Vec<Token> {
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let mut rest = text;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else {
            return found;
        };
        if is_symbol(first) {
            let symbol = SYMBOLS.into_iter().find(|s| rest.starts_with(s));
            found.push(match symbol {
                Some(symbol) => Token::Symbol(symbol),
                None => Token::Unknown(first.to_string()),
            });
            rest = &rest[symbol.map_or(first.len_utf8(), str::len)..];
        } else {
            let end = rest
                .find(|c: char| is_symbol(c) || matches!(c, ' ' | '\t' | '\r' | '\n'))
                .unwrap_or(rest.len());
            found.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position)
    }

    fn at(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(s)) if *s == symbol)
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.at(symbol);
        self.position += usize::from(found);
        found
    }

    /// A word; `in` and `notin` are words too where a key or value is expected.
    fn word(&mut self) -> Option<String> {
        let Some(Token::Word(word)) = self.peek() else {
            return None;
        };
        let word = word.clone();
        self.position += 1;
        Some(word)
    }

    fn here(&self) -> String {
        match self.peek() {
            None => "its end".to_owned(),
            Some(Token::Word(word) | Token::Unknown(word)) => format!("{word:?}"),
            Some(Token::Symbol(symbol)) => format!("{symbol:?}"),
        }
    }

    fn requirements(mut self) -> Result<Vec<Requirement>, String> {
        let mut found = Vec::new();
        if self.peek().is_none() {
            return Ok(found);
        }
        loop {
            found.push(self.requirement()?);
            if self.peek().is_none() {
                return Ok(found);
            }
            if !self.take(",") {
                return Err(format!(
                    "a comma or the end was expected, not {}",
                    self.here()
                ));
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.take("!");
        let Some(key) = self.word() else {
            return Err(format!("a label key was expected, not {}", self.here()));
        };
        check_key(&key)?;
        if absent {
            return Ok(Requirement::DoesNotExist(key));
        }
        match self.peek().cloned() {
            None | Some(Token::Symbol(",")) => Ok(Requirement::Exists(key)),
            Some(Token::Symbol("=" | "==")) => {
                self.position += 1;
                Ok(Requirement::In(key, [self.exact_value()?].into()))
            }
            Some(Token::Symbol("!=")) => {
                self.position += 1;
                Ok(Requirement::NotIn(key, [self.exact_value()?].into()))
            }
            Some(Token::Symbol(">")) => {
                self.position += 1;
                Ok(Requirement::GreaterThan(key, self.number()?))
            }
            Some(Token::Symbol("<")) => {
                self.position += 1;
                Ok(Requirement::LessThan(key, self.number()?))
            }
            Some(Token::Word(word)) if word == "in" => {
                self.position += 1;
                Ok(Requirement::In(key, self.value_list()?))
            }
            Some(Token::Word(word)) if word == "notin" => {
                self.position += 1;
                Ok(Requirement::NotIn(key, self.value_list()?))
            }
            Some(_) => Err(format!(
                "an operator (=, ==, !=, in, notin, <, >) was expected after {key:?}, not {}",
                self.here()
            )),
        }
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if self.peek().is_none() || self.at(",") {
            return Ok(String::new());
        }
        let Some(value) = self.word() else {
            return Err(format!("a label value was expected, not {}", self.here()));
        };
        check_value(&value)?;
        Ok(value)
    }

    fn number(&mut self) -> Result<i64, String> {
        let here = self.here();
        self.word()
            .and_then(|w| w.parse().ok())
            .ok_or_else(|| format!("an integer was expected, not {here}"))
    }

    fn value_list(&mut self) -> Result<BTreeSet<String>, String> {
        if !self.take("(") {
            return Err(format!("\"(\" was expected, not {}", self.here()));
        }
        if self.at(")") {
            return Err("the list of values is empty".to_owned());
        }
        let mut values = BTreeSet::new();
        loop {
            // As in kubectl, nothing between two commas is the empty value.
            let value = self.word().unwrap_or_default();
            check_value(&value)?;
            values.insert(value);
            if self.take(")") {
                return Ok(values);
            }
            if !self.take(",") {
                return Err(format!("\",\" or \")\" was expected, not {}", self.here()));
            }
        }
    }
}

/// Up to 63 letters, digits, `-`, `_`, `.`, the first and last a letter or digit.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let bytes = part.as_bytes();
            let edge =
                |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            edge(bytes.first())
                && edge(bytes.last())
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        })
}

fn check_key(key: &str) -> Result<(), String> {
    let good = match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
    };
    good.then_some(())
        .ok_or_else(|| format!("{key:?} is no label key"))
}

fn check_value(value: &str) -> Result<(), String> {
    (value.is_empty() || is_name(value))
        .then_some(())
        .ok_or_else(|| format!("{value:?} is no label value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split_whitespace()
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap();
                (key.to_owned(), value.to_owned())
            })
            .collect()
    }

    fn selects(selector: &str, on: &str) -> bool {
        LabelQuery::parse(selector)
            .unwrap()
            .unwrap()
            .matches(Some(&labels(on)))
    }

    #[test]
    fn selectors_match_as_kubectl_does() {
        let cases = [
            ("app=web", "app=web", true),
            ("app==web", "app=web", true),
            ("app=web", "app=db", false),
            ("app=web", "", false),
            ("app!=web", "", true),
            ("app!=web", "app=web", false),
            ("app", "app=", true),
            ("!app", "app=x", false),
            ("!app", "other=x", true),
            ("app in (web, db)", "app=db", true),
            ("app in (web,db)", "app=x", false),
            ("app in (web,db)", "", false),
            ("app notin (web)", "", true),
            ("app notin (web)", "app=web", false),
            ("app=", "app=", true),
            ("app=,tier=db", "app= tier=db", true),
            ("app in (,a)", "app=", true),
            ("n > 3", "n=4", true),
            ("n > 3", "n=3", false),
            ("n>3", "n=x", false),
            ("n<3", "n=2", true),
            ("app=web, tier!=db , !debug", "app=web tier=x", true),
            ("app=web,tier!=db,!debug", "app=web debug=1", false),
            ("ichor.example/skip=true", "ichor.example/skip=true", true),
            ("in in (in)", "in=in", true),
            ("a=in", "a=in", true),
            ("a=notin,b", "a=notin b=1", true),
        ];
        for (selector, on, expected) in cases {
            assert_eq!(selects(selector, on), expected, "{selector:?} on {on:?}");
        }
    }

    #[test]
    fn what_kubectl_refuses_is_refused() {
        for selector in [
            "app=web,",
            ",app",
            "app web",
            "app in web",
            "app in (",
            "app in ()",
            "app in (a b)",
            "app in (a",
            "app===web",
            "a=b=c",
            "a>x",
            "a>",
            "-a=b",
            "a/b/c=d",
            "A.B/c=d",
            "/c=d",
            "a=-b",
            "a=b c",
            "!",
            "!a=b",
            "a=(b)",
            "a)",
            "a=é",
        ] {
            assert!(LabelQuery::parse(selector).is_err(), "{selector:?}");
        }
        let long = "x".repeat(64);
        assert!(LabelQuery::parse(&long).is_err());
        assert!(LabelQuery::parse(&format!("a={long}")).is_err());
        assert!(LabelQuery::parse(&long[..63]).is_ok());
    }

    #[test]
    fn a_refusal_names_the_selector_and_the_place() {
        let error = LabelQuery::parse("app in web").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the label selector \"app in web\" cannot be read: \"(\" was expected, not \"web\""
        );
    }

    #[test]
    fn an_empty_selector_selects_nothing() {
        assert_eq!(LabelQuery::parse("").unwrap(), None);
        assert_eq!(LabelQuery::parse(" \t").unwrap(), None);
    }
}
