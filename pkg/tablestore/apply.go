package tablestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Own is the ETag by which an op of a [Change] names the version that an
// earlier stage of the same change wrote.
const Own ETag = "\x00own"

// Stage is a set of batches that may be applied in any order and in parallel. No row may be in
// two of them.
type Stage []Batch

// Change is one change of an aggregate as stages around a single commit point.
// Pre makes work findable or reserves something, and is harmless if the commit
// never comes. Post is clean-up that is safe to repeat.
type Change struct {
	Pre    []Stage
	Commit Batch
	Post   []Stage
}

// Applied is the known result of a [Change] after [Apply].
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

// validateStages reports the first rule that the stages break on a store that applies them one
// by one: those of [ValidateAll], and those below.
func validateStages(stages []Stage) error {
	if err := ValidateAll(slices.Concat(stages...)); err != nil {
		return err
	}
	for _, stage := range stages {
		rows := map[Key]bool{}
		for _, batch := range stage {
			if batch.Clears() {
				return batch[0].fault(ErrInvalid, onlyAtomic)
			}
			for i := range batch {
				op := &batch[i]
				if rows[op.Key] {
					return op.fault(ErrInvalid, "row is in two batches of one stage")
				}
				rows[op.Key] = true
			}
		}
	}
	return nil
}

// Apply carries the change out. An [AtomicStore] applies all stages in one
// atomic write. On any other store the Pre stages run one after the other, each
// known to be done before the next begins, then Commit, then the Post stages.
// Apply returns the error of the first Pre batch that failed, or of the commit,
// after all batches of that stage have ended. A change that breaks a rule is
// refused before anything is written, with an error that wraps [ErrInvalid] or [ErrTooLarge].
//
// Post stages stop at the first that fails, because a later one may remove the
// row by which the earlier one's work is found. A conflict of a Post op does
// not stop the change on an AtomicStore either: the Post stages are then
// applied one by one.
//
// After an error that wraps [ErrUnknown] the caller finds out the outcome by
// reading a row of the change. Apply never submits a batch twice.
//
// Stages that have begun go on for 30 s after ctx ends: a caller that gave up on a
// slow store repeats its request, and finds the change done.
//
// applied, unless it is nil, is called once with the ETags of a change that is
// committed, on an AtomicStore as early as [AtomicStore.CommitAll] allows.
func Apply(ctx context.Context, store Store, change Change, applied func(map[Key]ETag)) (Applied, error) {
	needed := append(slices.Clone(change.Pre), Stage{change.Commit})
	a := application{store: store, applied: applied, etags: map[Key]ETag{}}
	if atomic, ok := store.(AtomicStore); ok { // CommitAll validates its batches.
		err := a.commitAll(ctx, atomic, append(slices.Clone(needed), change.Post...))
		if err == nil {
			return Applied{Committed: true, ETags: a.etags}, nil
		}
		conflict, ok := errors.AsType[*ConflictError](err)
		if !ok || !conditionalOn(change.Post, conflict.Key) {
			return Applied{ETags: a.etags}, err
		}
		// The conflict may come from a Post op only, which must not stop the rest.
		if err := a.commitAll(ctx, atomic, needed); err != nil {
			return Applied{ETags: a.etags}, err
		}
	} else if err := validateStages(append(needed, change.Post...)); err != nil {
		return Applied{}, err
	} else if err := ctx.Err(); err != nil {
		return Applied{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	} else {
		var end context.CancelFunc
		ctx, end = finishing(ctx)
		defer end()
		if err := a.commitStages(ctx, needed); err != nil {
			return Applied{ETags: a.etags}, err
		}
	}
	postErr := a.commitStages(WithGuard(ctx, nil), change.Post)
	if _, atomic := store.(AtomicStore); !atomic && applied != nil {
		applied(a.etags)
	}
	return Applied{Committed: true, ETags: a.etags, PostErr: postErr}, nil
}

// finishTime is how long a change that has begun goes on after its caller gave up.
const finishTime = 30 * time.Second

// finishing returns a context that ends finishTime after ctx.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(finishTime, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// conditionalOn reports whether an op of the stages has a precondition on that
// row. The zero key stands for any row.
func conditionalOn(stages []Stage, key Key) bool {
	for _, batch := range slices.Concat(stages...) {
		for i := range batch {
			verb := batch[i].Verb
			if (verb == Insert || verb.conditional()) && (key == Key{} || batch[i].Key == key) {
				return true
			}
		}
	}
	return false
}

// application is one run of Apply.
type application struct {
	store   Store
	applied func(map[Key]ETag)
	etags   map[Key]ETag
}

// commitAll applies all stages in one write.
func (a *application) commitAll(ctx context.Context, store AtomicStore, stages []Stage) error {
	if err := Guarded(ctx); err != nil {
		return err
	}
	batches := slices.Concat(stages...)
	rows := 0
	for _, batch := range batches {
		rows += len(batch)
	}
	whole := application{etags: make(map[Key]ETag, rows)}
	_, err := store.CommitAll(ctx, batches, func(etags [][]ETag) {
		for i, batch := range batches {
			whole.note(batch, etags[i])
		}
		if a.applied != nil {
			a.applied(whole.etags)
		}
	})
	if err == nil { // After an error the callback may still be running.
		a.etags = whole.etags
	}
	return err
}

// commitStages applies the stages in order, the batches of one in parallel. It
// stops after the first stage with a failed batch, and returns the error of the
// first one in the stage's order.
func (a *application) commitStages(ctx context.Context, stages []Stage) error {
	for _, stage := range stages {
		if err := Guarded(ctx); err != nil {
			return err
		}
		results := make([][]ETag, len(stage))
		errs := make([]error, len(stage))
		commit := func(i int) { results[i], errs[i] = a.store.Commit(ctx, a.resolve(stage[i])) }
		var group sync.WaitGroup
		for i := 1; i < len(stage); i++ {
			group.Go(func() { commit(i) })
		}
		if len(stage) > 0 {
			commit(0)
		}
		group.Wait()

		var failed error
		for i, err := range errs {
			if err == nil {
				a.note(stage[i], results[i])
			} else if failed == nil {
				failed = err
			}
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// resolve returns the batch with each Own replaced by the version written.
func (a *application) resolve(batch Batch) Batch {
	batch = slices.Clone(batch)
	for i := range batch {
		if batch[i].ETag == Own {
			batch[i].ETag = a.etags[batch[i].Key]
		}
	}
	return batch
}

// note records the versions that the batch is known to have written.
func (a *application) note(batch Batch, etags []ETag) {
	for i := range batch {
		if batch[i].Verb.writes() {
			a.etags[batch[i].Key] = etags[i]
		} else {
			delete(a.etags, batch[i].Key)
		}
	}
}
