//! Parameters of the same layout, one behind the other in one set: each tensor has one axis more, in front.

use crate::{Layout, ParamSet};

/// Puts sets together. Nothing comes of none, or of sets of different layouts.
pub fn stacked(sets: &[ParamSet]) -> Option<ParamSet> {
    let layout = sets.first()?.layout();
    if sets.iter().any(|set| set.check_layout(&layout).is_err()) {
        return None;
    }
    let mut stack = ParamSet::new();
    for (name, shape) in layout {
        let values = sets.iter().filter_map(|set| set.get(&name));
        let values: Vec<f32> = values.flat_map(|tensor| tensor.values().to_vec()).collect();
        let shape: Vec<usize> = [sets.len()].into_iter().chain(shape).collect();
        stack.insert(name, &shape, values).ok()?;
    }
    Some(stack)
}

/// Takes at most so many sets of a layout apart again. Nothing comes of tensors that are not a stack of these.
pub fn unstacked(stack: &ParamSet, layout: &Layout, most: usize) -> Option<Vec<ParamSet>> {
    let (_, first) = stack.iter().next()?;
    let count = *first.shape().first()?;
    let in_front = |shape: &Vec<usize>| [count].into_iter().chain(shape.iter().copied()).collect();
    let expected = layout
        .iter()
        .map(|(name, shape)| (name.clone(), in_front(shape)));
    // Before anything is made of a number that somebody else has chosen.
    if !(1..=most).contains(&count) || stack.check_layout(&expected.collect()).is_err() {
        return None;
    }
    let mut sets = vec![ParamSet::new(); count];
    for (name, tensor) in stack.iter() {
        let (_, shape) = tensor.shape().split_first()?;
        let length = tensor.values().len() / count;
        for (at, set) in sets.iter_mut().enumerate() {
            let values = tensor.values().get(at * length..(at + 1) * length)?;
            set.insert(name, shape, values.to_vec()).ok()?;
        }
    }
    Some(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(values: [f32; 3]) -> ParamSet {
        let mut set = ParamSet::new();
        set.insert("a", &[2], values[..2].to_vec()).unwrap();
        set.insert("b", &[], values[2..].to_vec()).unwrap();
        set
    }

    #[test]
    fn sets_come_out_of_a_stack_as_they_went_in() {
        let sets = [set([1.0, 2.0, 3.0]), set([4.0, 5.0, 6.0])];
        let stack = stacked(&sets).unwrap();
        assert_eq!(stack.get("a").unwrap().shape(), [2, 2]);
        assert_eq!(stack.get("b").unwrap().values(), [3.0, 6.0]);
        let layout = sets[0].layout();
        assert_eq!(unstacked(&stack, &layout, 2), Some(sets.to_vec()));
        assert_eq!(unstacked(&stack, &layout, 1), None);
    }

    #[test]
    fn what_is_no_stack_is_not_taken_apart() {
        assert_eq!(stacked(&[]), None);
        let mut other = set([0.0; 3]);
        let layout = other.layout();
        let unstacked = |stack: &ParamSet| unstacked(stack, &layout, 9);
        assert_eq!(unstacked(&other), None, "a number without an axis");
        other.insert("c", &[1], vec![0.0]).unwrap();
        assert_eq!(stacked(&[set([0.0; 3]), other]), None);
        let mut uneven = ParamSet::new();
        uneven.insert("a", &[2, 1], vec![0.0; 2]).unwrap();
        uneven.insert("b", &[3, 1], vec![0.0; 3]).unwrap();
        assert_eq!(unstacked(&uneven), None);
        // No memory is asked for because somebody says a large number.
        let mut huge = ParamSet::new();
        huge.insert("a", &[1 << 60, 0], vec![]).unwrap();
        assert_eq!(unstacked(&huge), None);
        let nothing = Layout::from([("a".to_owned(), vec![0])]);
        assert_eq!(super::unstacked(&huge, &nothing, 9), None);
    }
}
