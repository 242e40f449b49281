package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lucius-project/lucius/internal/samplepipeline"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// tenant is the tenant of the documents.
const tenant = "demo"

// lookInterval is how often the jobs are read: often enough to look live.
const lookInterval = 100 * time.Millisecond

// document is one document and its job.
type document struct {
	name string
	// replayed is true if its job is from an earlier run.
	replayed bool
	job      lucius.Job
}

// ingest submits the documents and follows their jobs to the end.
func (d *demo) ingest(ctx context.Context, names []string) ([]*document, error) {
	documents := make([]*document, len(names))
	for i, name := range names {
		var err error
		documents[i], err = d.submit(ctx, name)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, stopped(ctx)
		case err != nil:
			return nil, fmt.Errorf("submit %s: %w", name, err)
		}
	}
	return documents, d.watch(ctx, documents)
}

// submit sends the command of one document.
func (d *demo) submit(ctx context.Context, name string) (*document, error) {
	path := filepath.Join(d.workspace.Documents, name)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err // It names the file.
	}
	input, output := samplepipeline.FileRef(path), samplepipeline.FileRef(d.workspace.OutputPath(name))
	accepted, err := d.client.Submit(ctx, lucius.Command{
		TenantID: tenant, RequestType: "doc.ingest", SchemaVersion: "1", InputRef: input, OutputRef: output,
		Payload: map[string]string{"language": "en"}, IdempotencyKey: key(input, output, content),
	})
	if err != nil {
		return nil, err
	}
	return &document{
		name: name, replayed: accepted.Replayed, job: lucius.Job{JobID: accepted.JobID, State: accepted.State},
	}, nil
}

// key returns an idempotency key of everything that a command depends on.
func key(parts ...[]byte) string {
	hash := sha256.New()
	for _, part := range parts {
		digest := sha256.Sum256(part)
		hash.Write(digest[:])
	}
	return "demo-" + hex.EncodeToString(hash.Sum(nil)[:16])
}

// watch reads the jobs until all have ended and shows each change. The client tolerates
// outages of the server.
func (d *demo) watch(ctx context.Context, documents []*document) error {
	show := newProgress(d.Out, d.Terminal, d.run, documents)
	defer show.end()
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		open, err := d.look(ctx, documents, show)
		if ctx.Err() == nil && (err != nil || open == 0) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return stopped(ctx)
		}
	}
}

// stopped returns the error of a run that was interrupted.
func stopped(ctx context.Context) error {
	return fmt.Errorf("stopped before every job had ended; run it again to continue: %w", context.Cause(ctx))
}

// look reads the jobs that have not ended and returns how many are left.
func (d *demo) look(ctx context.Context, documents []*document, show *progress) (open int, err error) {
	for _, doc := range documents {
		if !doc.job.State.Final() {
			job, err := d.client.Get(ctx, doc.job.JobID)
			if err != nil {
				return 0, fmt.Errorf("look at %s: %w", doc.name, err)
			}
			doc.job = *job
		}
		show.update(doc)
		if !doc.job.State.Final() {
			open++
		}
	}
	return open, nil
}
