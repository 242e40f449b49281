package tablestore

import (
	"fmt"
	"maps"
)

// Own is the ETag by which an op of a [Change] names the version that an
// earlier stage of the same change wrote.
const Own ETag = "\x00own"

// Stage is a set of batches that may be applied in any order and in parallel.
type Stage []Batch

// Change is one change of an aggregate as stages around a single commit point.
// Pre makes work findable or reserves something, and is harmless if the commit
// never comes. Post is clean-up that is safe to repeat.
type Change struct {
	Pre    []Stage
	Commit Batch
	Post   []Stage
}

// Applied is what is known of a [Change] after [Apply].
type Applied struct {
	// Committed says that the commit succeeded.
	Committed bool
	// ETags holds the versions of all rows that are known to be written and not
	// removed again, even if Apply returned an error.
	ETags map[Key]ETag
	// PostErr is the first error of the Post stages. The change is committed
	// nevertheless; the sweeper finds unfinished Post work through the
	// schedule.
	PostErr error
}

// Validate reports the first rule that the change breaks: each batch must be
// valid, no row may be in two batches of one stage, and each [Own] must name a
// row that an earlier stage wrote. The error wraps [ErrInvalid] or
// [ErrTooLarge].
func (c Change) Validate() error {
	written := map[Key]bool{}
	for i, stage := range c.Pre {
		if err := stage.validate(written); err != nil {
			return fmt.Errorf("pre stage %d: %w", i, err)
		}
	}
	if err := (Stage{c.Commit}).validate(written); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for i, stage := range c.Post {
		if err := stage.validate(written); err != nil {
			return fmt.Errorf("post stage %d: %w", i, err)
		}
	}
	return nil
}

// validate checks the stage against the rows that earlier stages wrote, and
// adds its own.
func (s Stage) validate(written map[Key]bool) error {
	after := map[Key]bool{}
	for _, batch := range s {
		if err := batch.validate(); err != nil {
			return err
		}
		for i := range batch {
			op := &batch[i]
			if _, twice := after[op.Key]; twice {
				return op.fault(ErrInvalid, "row is in two batches of one stage")
			}
			if op.ETag == Own && !written[op.Key] {
				return op.fault(ErrInvalid, "no earlier stage wrote this row")
			}
			after[op.Key] = op.Verb.writes()
		}
	}
	maps.Copy(written, after)
	return nil
}

// batches returns the batches of all the stages, in order.
func batches(stages ...Stage) []Batch {
	var all []Batch
	for _, stage := range stages {
		all = append(all, stage...)
	}
	return all
}

// conditionalOn reports whether an op of the stages has a precondition on that
// row. The zero key stands for any row.
func conditionalOn(stages []Stage, key Key) bool {
	for _, batch := range batches(stages...) {
		for i := range batch {
			verb := batch[i].Verb
			if (verb == Insert || verb.conditional()) && (key == Key{} || batch[i].Key == key) {
				return true
			}
		}
	}
	return false
}
