package tablestore

import (
	"fmt"
	"maps"
)

// Own is the ETag by which a later op of a [Change] names the version that an
// earlier stage of the same change has written.
const Own ETag = "\x00own"

// Stage is a set of batches that may be applied in any order and in parallel.
type Stage []Batch

// Change is one change of an aggregate as stages around a single commit
// point. Pre makes work findable or reserved and is harmless if the commit
// never comes; Post is clean-up that whoever finds the work may do again.
type Change struct {
	Pre    []Stage
	Commit Batch
	Post   []Stage
}

// Applied is what is known of a [Change] after [Apply].
type Applied struct {
	// Committed says that the commit point was passed.
	Committed bool
	// ETags holds the versions of all rows that were surely written and not
	// removed again, also when Apply returned an error.
	ETags map[Key]ETag
	// PostErr is the first error of the Post stages. The change holds
	// nevertheless; what is left over is found through the schedule.
	PostErr error
}

// Validate reports the first rule that the change breaks, so that a defect is
// known before anything is written: each batch by itself, no row in two
// batches of one stage, and each [Own] naming a row that an earlier stage
// wrote. The error wraps [ErrInvalid] or [ErrTooLarge].
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

// validate checks the stage against what the stages before it have written,
// and adds its own writes.
func (s Stage) validate(written map[Key]bool) error {
	after := map[Key]bool{}
	for _, batch := range s {
		if err := batch.validate(); err != nil {
			return err
		}
		for i := range batch {
			op := &batch[i]
			if _, twice := after[op.Key]; twice {
				return op.fault(ErrInvalid, "row stands in two batches of one stage")
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
