package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/docpipeline"
	"github.com/lucius-project/lucius/internal/worker"
)

// ErrNotIngested is returned when a document's job ended in another state than
// SUCCEEDED.
var ErrNotIngested = errors.New("not every document was ingested")

// ErrNoDocuments is returned for a folder without a .txt or .html file.
var ErrNoDocuments = errors.New("there is no .txt or .html file")

// demo is one run.
type demo struct {
	Options
	client    *api.ClientWithResponses
	workspace docpipeline.Workspace
}

// Run runs the demo and returns an error unless every job succeeded:
// [ErrNotIngested], [ErrNoDocuments], the context's cause, or the error of a request.
// A second run on the same folders continues the jobs of the first.
func Run(ctx context.Context, options Options) error {
	options.setDefaults()
	if err := options.Validate(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}
	defer transport.CloseIdleConnections()
	d, err := prepare(options, transport)
	if err != nil {
		return err
	}
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

// prepare makes the folders absolute, as file URIs need them.
func prepare(options Options, transport http.RoundTripper) (*demo, error) {
	documents, err := filepath.Abs(options.DocumentsDir)
	if err != nil {
		return nil, fmt.Errorf("folder of the documents: %w", err)
	}
	work, err := filepath.Abs(options.WorkDir)
	if err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	client, err := api.NewClientWithResponses(options.BaseURL, api.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", options.BaseURL, err)
	}
	return &demo{
		Options: options, client: client, workspace: docpipeline.Workspace{Documents: documents, Work: work},
	}, nil
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

// serve runs one platform service until the context ends.
func (d *demo) serve(ctx context.Context, name string, service docpipeline.Service) error {
	w, err := worker.New(worker.Config{
		// A new name for each run: the items of a killed worker do not belong to it.
		Client: d.client, Owner: "demo-" + name + "-" + uuid.NewString(), Services: []string{name},
		Handle: func(ctx context.Context, directive api.Directive) (json.RawMessage, error) {
			return d.work(ctx, service, directive)
		},
		Permanent: func(err error) bool { return errors.Is(err, docpipeline.ErrPermanent) },
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// work does one step at the demo's pace.
func (d *demo) work(ctx context.Context, service docpipeline.Service, directive api.Directive) (json.RawMessage, error) {
	result, err := service(ctx, directive)
	if d.Pace == 0 {
		return result, err
	}
	timer := time.NewTimer(d.Pace)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return result, err
}
