package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// archive appends each job that is about to be purged to a file of its month, as
// one JSON line.
type archive struct {
	dir string
	mu  sync.Mutex
}

// newArchive returns an archive in the folder, which is made if it is missing.
func newArchive(dir string) (*archive, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("LUCIUS_ARCHIVE_DIR %s: %w", dir, err)
	}
	return &archive{dir: dir}, nil
}

// archivedJob is one line: the job as the API shows it, with its history.
type archivedJob struct {
	api.Job

	Payload json.RawMessage `json:"payload,omitempty"`
	Events  []api.Event     `json:"events"`
}

// add writes the job's line, synced to the disk. A job that is purged again after
// a crash may have two.
func (a *archive) add(_ context.Context, job *ledger.Archived) (err error) {
	line, err := a.line(job)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	path := filepath.Join(a.dir, "jobs-"+job.Job.CreatedAt.Format("2006-01")+".jsonl")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(line); err != nil {
		return fmt.Errorf("write to the archive: %w", err)
	}
	return file.Sync()
}

// line is the job's line.
func (a *archive) line(job *ledger.Archived) ([]byte, error) {
	view := &jobs.View{Aggregate: job.Aggregate, Payloads: make([][]byte, len(job.Steps))}
	line, err := json.Marshal(archivedJob{Job: httpapi.JobOf(view), Payload: job.Payload, Events: httpapi.EventsOf(job.History)})
	if err != nil {
		return nil, fmt.Errorf("encode job %s for the archive: %w", job.Job.ID, err)
	}
	return append(line, '\n'), nil
}
