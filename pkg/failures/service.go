package failures

import (
	"context"
	"errors"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Ledger is what the package needs of the ledger.
type Ledger interface {
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
	Rerun(ctx context.Context, rerun ledger.Rerun) (ledger.Accepted, error)
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
	Tenants(ctx context.Context, after string, limit int) ([]string, error)
	NewJobID() (string, error)
}

// Config is what a [Service] is made of.
type Config struct {
	// Ledger holds the jobs. Required.
	Ledger Ledger
	// Store holds the operations. Required.
	Store tablestore.Store
	// Table is theirs. Required.
	Table string
}

// Service shows failed jobs, and keeps the operations that rerun them. It is
// safe for concurrent use, by any number of processes on one store.
type Service struct{ cfg Config }

// New returns a service. The error names the fields that are required.
func New(cfg Config) (*Service, error) {
	if cfg.Ledger == nil || cfg.Store == nil || cfg.Table == "" {
		return nil, errors.New("failures: Ledger, Store and Table are required")
	}
	return &Service{cfg: cfg}, nil
}
