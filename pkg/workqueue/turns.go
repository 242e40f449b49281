package workqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// turns lets the requests on one item take turns within the process: the
// second sees the item as the first has left it. Between processes, the rows'
// versions decide. It is no lock on the item: nothing waits for a turn but
// requests, each for as long as its context lasts.
type turns struct {
	mu   sync.Mutex
	held map[string]*turn
}

// turn is an item's: whoever has put a token in may go on.
type turn struct {
	token chan struct{}
	users int // it is forgotten with the last one
}

func newTurns() *turns { return &turns{held: map[string]*turn{}} }

// take waits for the item's turn, which release ends. It returns
// [tablestore.ErrUnavailable] where the context ends first: nothing was done.
func (t *turns) take(ctx context.Context, workID string) (release func(), err error) {
	mine := t.join(workID)
	select {
	case mine.token <- struct{}{}:
		return func() {
			<-mine.token
			t.leave(workID, mine)
		}, nil
	case <-ctx.Done():
		t.leave(workID, mine)
		return nil, fmt.Errorf("wait for the turn of work item %s: %w", workID, errors.Join(tablestore.ErrUnavailable, ctx.Err()))
	}
}

func (t *turns) join(workID string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.held[workID]
	if mine == nil {
		mine = &turn{token: make(chan struct{}, 1)}
		t.held[workID] = mine
	}
	mine.users++
	return mine
}

func (t *turns) leave(workID string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.users--; mine.users == 0 {
		delete(t.held, workID)
	}
}
