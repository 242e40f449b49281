package tablestore

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Apply carries the change out. An [AtomicStore] applies all stages in one
// atomic write. On any other store the Pre stages run one after the other, each
// known to be done before the next begins, then Commit, then the Post stages.
// Apply returns the error of the first Pre batch that failed, or of the commit,
// after all batches of that stage have ended. A change that breaks a rule is
// refused with the error of [Change.Validate] before anything is written.
//
// Post stages stop at the first that fails, because a later one may remove the
// row by which the earlier one's work is found. A conflict of a Post op does
// not stop the change on an AtomicStore either: the Post stages are then
// applied one by one.
//
// After an error that wraps [ErrUnknown] the caller finds out the outcome by
// reading a row of the change. Apply never submits a batch twice.
func Apply(ctx context.Context, store Store, change Change) (Applied, error) {
	if err := change.Validate(); err != nil {
		return Applied{}, err
	}
	run := application{store: store, etags: map[Key]ETag{}}
	if atomic, ok := store.(AtomicStore); ok {
		return run.atomic(ctx, atomic, change)
	}
	return run.staged(ctx, change)
}

// application is one run of Apply.
type application struct {
	store Store
	etags map[Key]ETag
}

// staged applies the change as one write per batch.
func (a *application) staged(ctx context.Context, change Change) (Applied, error) {
	if err := a.stages(ctx, change.Pre); err != nil {
		return Applied{ETags: a.etags}, err
	}
	if err := a.stage(ctx, Stage{change.Commit}); err != nil {
		return Applied{ETags: a.etags}, err
	}
	postErr := a.stages(ctx, change.Post)
	return Applied{Committed: true, ETags: a.etags, PostErr: postErr}, nil
}

// atomic applies the change as one write.
func (a *application) atomic(ctx context.Context, store AtomicStore, change Change) (Applied, error) {
	needed := append(batches(change.Pre...), change.Commit)
	err := a.commitAll(ctx, store, append(slices.Clone(needed), batches(change.Post...)...))
	if err == nil {
		return Applied{Committed: true, ETags: a.etags}, nil
	}
	conflict, ok := errors.AsType[*ConflictError](err)
	if !ok || !conditionalOn(change.Post, conflict.Key) {
		return Applied{ETags: a.etags}, err
	}
	// The conflict may come from a Post op only, which must not stop the rest.
	if err := a.commitAll(ctx, store, needed); err != nil {
		return Applied{ETags: a.etags}, err
	}
	postErr := a.stages(ctx, change.Post)
	return Applied{Committed: true, ETags: a.etags, PostErr: postErr}, nil
}

func (a *application) commitAll(ctx context.Context, store AtomicStore, batches []Batch) error {
	results, err := store.CommitAll(ctx, batches)
	if err != nil {
		return err
	}
	for i, batch := range batches {
		a.note(batch, results[i])
	}
	return nil
}

// stages applies the stages in order and stops at the first that fails.
func (a *application) stages(ctx context.Context, stages []Stage) error {
	for _, stage := range stages {
		if err := a.stage(ctx, stage); err != nil {
			return err
		}
	}
	return nil
}

// stage applies the batches in parallel and waits for all. It returns the error
// of the first failed batch in the stage's order.
func (a *application) stage(ctx context.Context, stage Stage) error {
	resolved := make([]Batch, len(stage))
	for i, batch := range stage {
		resolved[i] = a.resolve(batch)
	}
	results := make([][]ETag, len(stage))
	errs := make([]error, len(stage))
	var group sync.WaitGroup
	for i := 1; i < len(stage); i++ {
		group.Go(func() { results[i], errs[i] = a.store.Commit(ctx, resolved[i]) })
	}
	if len(stage) > 0 {
		results[0], errs[0] = a.store.Commit(ctx, resolved[0])
	}
	group.Wait()

	var first error
	for i, err := range errs {
		if err == nil {
			a.note(stage[i], results[i])
		} else if first == nil {
			first = err
		}
	}
	return first
}

// resolve returns the batch with each Own replaced by the version written.
func (a *application) resolve(batch Batch) Batch {
	owns := func(op Op) bool { return op.ETag == Own }
	if !slices.ContainsFunc(batch, owns) {
		return batch
	}
	batch = slices.Clone(batch)
	for i := range batch {
		if owns(batch[i]) {
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
