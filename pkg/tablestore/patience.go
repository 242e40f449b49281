package tablestore

import (
	"context"
	"sync/atomic"
	"time"
)

type (
	loopKey      struct{}
	operationKey struct{}
	patienceKey  struct{}
	guardKey     struct{}
)

// ForLoop returns a context whose calls of a store are those of a background loop. A store that
// limits how many calls are under way shares its places fairly among the loops, and the
// requests that no loop makes.
func ForLoop(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, loopKey{}, name)
}

// LoopOf returns the name of the loop, empty for a request.
func LoopOf(ctx context.Context) string {
	name, _ := ctx.Value(loopKey{}).(string)
	return name
}

// ForOperation returns a context whose calls of a store belong to one operation, which is that of
// ctx if it has one. A store that limits how many calls are under way lets an operation that has
// begun go on before it begins another: those that are left half done have used their places for
// nothing.
func ForOperation(ctx context.Context) context.Context {
	if ctx.Value(operationKey{}) != nil {
		return ctx
	}
	return context.WithValue(ctx, operationKey{}, new(atomic.Bool))
}

// Begun reports whether a call of the operation of ctx was made.
func Begun(ctx context.Context) bool {
	begun, ok := ctx.Value(operationKey{}).(*atomic.Bool)
	return ok && begun.Load()
}

// Begin records that a call of the operation of ctx is made.
func Begin(ctx context.Context) {
	if begun, ok := ctx.Value(operationKey{}).(*atomic.Bool); ok {
		begun.Store(true)
	}
}

// WithPatience returns a context whose calls of a store may take that long.
func WithPatience(ctx context.Context, patience time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, patience)
}

// Patience returns how long a driver lets a request to its store take: that of the context, or
// else the driver's own deadline.
func Patience(ctx context.Context, deadline time.Duration) time.Duration {
	if patience, ok := ctx.Value(patienceKey{}).(time.Duration); ok {
		return patience
	}
	return deadline
}

// WithGuard returns a context whose writes are refused with [ErrLapsed] once guard reports false.
// [Apply] and the drivers ask it immediately before each sending, since a write may wait for a
// long time to be sent. Post stages are not guarded. It must not block.
func WithGuard(ctx context.Context, guard func() bool) context.Context {
	return context.WithValue(ctx, guardKey{}, guard)
}

// Guarded returns [ErrLapsed] if a guard of ctx refuses to send a write.
func Guarded(ctx context.Context) error {
	if guard, ok := ctx.Value(guardKey{}).(func() bool); ok && guard != nil && !guard() {
		return ErrLapsed
	}
	return nil
}

// Paced is a store that notices when its calls are slow, and may adapt their number and deadline.
type Paced interface {
	// Pace returns how the store answers now.
	Pace() Pace
}

// Pace describes how a store answers.
type Pace struct {
	// Slow is since when calls take too long, the zero time if none has for a minute.
	Slow time.Time
	// Answered is when the store last answered a call.
	Answered time.Time
	// Deadline is how long a call may take, and Limit how many may be under way; zero if the
	// store has no limits.
	Deadline time.Duration
	Limit    int
	// Underway calls have been sent, and Waiting ones wait because of the limit.
	Underway, Waiting int
	// Timeouts is how many calls have timed out since the start of the process.
	Timeouts int64
}
