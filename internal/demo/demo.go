// Package demo ingests a folder of documents, as a small example of a platform.
//
//	documents ──command each──▶ ┌────────┐ ◀──claim, complete── extract
//	                            │ server │ ◀──claim, complete── embed
//	bars or lines ◀───states─── └────────┘ ◀──claim, complete── index ──▶ files
//
// It runs the three services of package samplepipeline as workers that pull over
// HTTP, submits a command for each document, shows the progress of the jobs, and
// searches the resulting index. Only the server is a separate process.
//
// After a kill, even kill -9, it may be run again on the same folders. Each command's
// idempotency key is derived from the document's path and content, so the server
// answers with the job of the first run, which continues; a document edited in the
// meantime is a new job. The steps of a killed worker are tried again when their leases
// expire, which the demo's protocol lets happen soon; until then the progress says so.
package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/samplepipeline"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// Options configures a run.
type Options struct {
	// BaseURL is the URL of the server, which must have the protocol doc.ingest with
	// the services extract, embed and index. Required.
	BaseURL string
	// DocumentsDir has the .txt and .html documents. Required.
	DocumentsDir string
	// WorkDir is the folder that the services write to; it is created. Required.
	WorkDir string
	// Out receives the progress and the results. Required.
	Out io.Writer
	// Terminal is true if Out is a terminal, on which bars can be drawn in place.
	Terminal bool
	// Query is the search at the end. Optional. Defaults to a question about a
	// lighthouse.
	Query string
	// Pace slows down each step, so that a person can watch. Optional. Defaults to 0.
	Pace time.Duration
	// Patience is how long the server may be away while jobs are in flight, such as
	// during a restart. Optional. Defaults to 30s.
	Patience time.Duration
}

// validate returns an error that names the first invalid field.
func (o *Options) validate() error {
	base, err := url.Parse(o.BaseURL)
	switch {
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return fmt.Errorf("BaseURL is %q, it must be an http or https URL", o.BaseURL)
	case o.DocumentsDir == "":
		return errors.New("DocumentsDir is required")
	case o.WorkDir == "":
		return errors.New("WorkDir is required")
	case o.Out == nil:
		return errors.New("Out is required")
	case o.Pace < 0:
		return fmt.Errorf("Pace is %s, it must not be negative", o.Pace)
	case o.Patience < 0:
		return fmt.Errorf("Patience is %s, it must not be negative", o.Patience)
	}
	return nil
}

// ErrNotIngested is returned when a document's job ended in another state than
// SUCCEEDED.
var ErrNotIngested = errors.New("not every document was ingested")

// ErrNoDocuments is returned for a folder without a .txt or .html file.
var ErrNoDocuments = errors.New("there is no .txt or .html file")

// demo is one run.
type demo struct {
	Options
	// run is a part of the names of this run's workers, and of no other run's.
	run       string
	client    *lucius.Client
	workspace samplepipeline.Workspace
}

// Run runs the demo and returns an error unless every job succeeded:
// [ErrNotIngested], [ErrNoDocuments], the context's cause, or the error of a request.
// A second run on the same folders continues the jobs of the first.
func Run(ctx context.Context, options Options) error {
	options.Query = cmp.Or(options.Query, "a lamp that ships see at night from the sea")
	options.Patience = cmp.Or(options.Patience, 30*time.Second)
	if err := options.validate(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	// File URIs need absolute paths.
	documentsDir, err := filepath.Abs(options.DocumentsDir)
	if err != nil {
		return fmt.Errorf("folder of the documents: %w", err)
	}
	work, err := filepath.Abs(options.WorkDir)
	if err != nil {
		return fmt.Errorf("work folder: %w", err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}
	defer transport.CloseIdleConnections()
	client, err := lucius.NewClient(lucius.ClientConfig{
		URL: options.BaseURL, HTTPClient: &http.Client{Transport: transport}, RetryFor: options.Patience,
	})
	if err != nil {
		return fmt.Errorf("server %s: %w", options.BaseURL, err)
	}
	d := &demo{options, rand.Text(), client, samplepipeline.Workspace{Documents: documentsDir, Work: work}}
	names, err := d.documents()
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	group, working := errgroup.WithContext(working)
	for name, service := range d.workspace.Services() {
		group.Go(func() error { return d.serve(working, name, service) })
	}
	documents, err := d.ingest(working, names)
	stop()
	if workErr := group.Wait(); workErr != nil {
		return workErr // It stopped the rest.
	}
	if err != nil {
		return err
	}
	return d.tell(documents)
}

// documents lists the documents by name.
func (d *demo) documents() ([]string, error) {
	entries, err := os.ReadDir(d.workspace.Documents)
	if err != nil {
		return nil, fmt.Errorf("folder of the documents: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch strings.ToLower(filepath.Ext(entry.Name())) {
		case ".txt", ".html", ".htm":
			names = append(names, entry.Name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNoDocuments, d.workspace.Documents)
	}
	return names, nil
}

// serve runs one platform service at the demo's pace until the context ends.
func (d *demo) serve(ctx context.Context, name string, service lucius.Handler) error {
	w := lucius.NewWorker(lucius.WorkerConfig{
		Client: d.client, Service: name, Owner: "demo-" + name + "-" + d.run, Log: slog.New(slog.DiscardHandler),
	})
	w.Handle(lucius.AnyStep, func(ctx context.Context, task *lucius.Task) (any, error) {
		result, err := service(ctx, task)
		timer := time.NewTimer(d.Pace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return result, err
	})
	return w.Run(ctx)
}

// hits is how many documents the search shows.
const hits = 3

// tell prints the outcome of the documents and the paths of the results, and shows by a
// search that the index works.
func (d *demo) tell(documents []*document) error {
	var failed []string
	for _, doc := range documents {
		if doc.job.State != lucius.JobStateSucceeded {
			failed = append(failed, fmt.Sprintf("%s is %s: %s %s (job %s)",
				doc.name, doc.job.State, doc.job.ErrorCode, doc.job.ErrorMessage, doc.job.JobID))
		}
	}
	fmt.Fprintf(d.Out, "\n%d of %d documents ingested\n", len(documents)-len(failed), len(documents))
	fmt.Fprintf(d.Out, "  outputs  %s\n  index    %s\n",
		filepath.Dir(d.workspace.OutputPath(documents[0].name)), d.workspace.IndexDir())
	heading := "jobs"
	for _, doc := range documents {
		fmt.Fprintf(d.Out, "  %-8s %s/v1/jobs/%s  %s\n", heading, strings.TrimSuffix(d.BaseURL, "/"), doc.job.JobID, doc.name)
		heading = ""
	}
	if len(failed) > 0 {
		return fmt.Errorf("%w: %s", ErrNotIngested, strings.Join(failed, "; "))
	}
	found, err := samplepipeline.Search(d.workspace.IndexDir(), d.Query, hits)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nsearch: %q\n", d.Query)
	for i, hit := range found {
		fmt.Fprintf(d.Out, "  %d. %.2f  %s (%s)\n           %s\n", i+1, hit.Score, hit.Title, hit.Name, hit.Snippet)
	}
	return nil
}
