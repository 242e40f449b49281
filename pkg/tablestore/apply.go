package tablestore

import (
	"context"
	"slices"
	"sync"
)

// Apply carries the change out. An [AtomicStore] applies all stages in one
// atomic write; for any other, the Pre stages go one after the other, each
// known done before the next, then Commit, then the Post stages. The error is
// that of the first Pre batch that failed, or of the commit; the batches of a
// stage all run to their end before it is returned. A change that breaks a
// rule is refused with the error of [Change.Validate] before anything is
// written.
//
// Post stages stop at the first that failed: a later one may remove what makes
// the earlier one's work findable. On an AtomicStore a conflict of a Post op
// does not hold up the change either: the Post stages then follow one by one.
//
// An error that wraps [ErrUnknown] leaves the outcome to the caller, who knows
// which row tells. Apply never submits a batch twice.
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
	key, conflict := IsConflict(err)
	if !conflict || !conditionalOn(change.Post, key) {
		return Applied{ETags: a.etags}, err
	}
	// The conflict may be that of a Post op alone, which must not stop the rest.
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

// stages applies the stages in order and stops at the first that failed.
func (a *application) stages(ctx context.Context, stages []Stage) error {
	for _, stage := range stages {
		if err := a.stage(ctx, stage); err != nil {
			return err
		}
	}
	return nil
}

// stage applies the batches in parallel and waits for all. The error is that
// of the first batch, in their order, that failed.
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

// resolve returns the batch with the versions that Own stands for.
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

// note keeps the versions that the batch has surely written.
func (a *application) note(batch Batch, etags []ETag) {
	for i := range batch {
		if batch[i].Verb.writes() {
			a.etags[batch[i].Key] = etags[i]
		} else {
			delete(a.etags, batch[i].Key)
		}
	}
}
