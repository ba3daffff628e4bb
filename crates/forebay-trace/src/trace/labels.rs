//! Labels of blocks: what allocated them, as far as the source reports it.

use std::collections::HashMap;

use super::BlockIndex;

/// The most different labels of a recording; blocks of others have none.
const MAX_LABELS: usize = 1 << 16;

/// The most bytes of a label; the rest is cut off.
const LONGEST: usize = 1 << 10;

/// Texts of blocks: tags, or call stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
    /// By block, as far as any block has one: the number of its label plus one, or 0.
    of_block: Vec<u32>,
}

impl Labels {
    /// The different texts, by number.
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The number of the text of `block`.
    pub(crate) fn number(&self, block: BlockIndex) -> Option<u32> {
        self.of_block.get(block.0 as usize)?.checked_sub(1)
    }

    /// The text of `block`.
    pub(crate) fn of(&self, block: BlockIndex) -> Option<&str> {
        self.texts.get(self.number(block)? as usize).map(String::as_str)
    }

    /// Labels `block`.
    pub(crate) fn set(&mut self, block: BlockIndex, text: &str) {
        let end = (0..=text.len().min(LONGEST)).rev().find(|&end| text.is_char_boundary(end));
        let text = text.get(..end.unwrap_or(0)).unwrap_or_default();
        let number = match self.numbers.get(text) {
            Some(&number) => number,
            None if self.texts.len() == MAX_LABELS || text.is_empty() => return,
            None => {
                self.texts.push(text.to_owned());
                let number = u32::try_from(self.texts.len()).unwrap_or(0);
                self.numbers.insert(text.to_owned(), number);
                number
            }
        };
        let index = block.0 as usize;
        if self.of_block.len() <= index {
            self.of_block.resize(index + 1, 0);
        }
        if let Some(place) = self.of_block.get_mut(index) {
            *place = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_shared_bounded_and_cut_at_a_character() {
        let mut labels = Labels::default();
        labels.set(BlockIndex(3), "forward");
        labels.set(BlockIndex(1), "forward");
        assert_eq!(labels.texts.len(), 1);
        let found = [0, 1, 2, 3, 4].map(|block| labels.of(BlockIndex(block)));
        assert_eq!(found, [None, Some("forward"), None, Some("forward"), None]);
        labels.set(BlockIndex(0), &"ä".repeat(LONGEST));
        assert_eq!(labels.of(BlockIndex(0)).map(str::len), Some(LONGEST));
        for number in 0..2 * MAX_LABELS {
            labels.set(BlockIndex(0), &number.to_string());
        }
        assert_eq!(labels.texts.len(), MAX_LABELS);
    }
}
