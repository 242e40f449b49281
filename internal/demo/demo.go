package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/docpipeline"
	"github.com/lucius-project/lucius/internal/worker"
)

// Options is what a demo needs.
type Options struct {
	// BaseURL is the server's. Required.
	BaseURL string
	// DocumentsDir holds the .txt and .html documents. Required.
	DocumentsDir string
	// WorkDir is where the services write. Required.
	WorkDir string
	// Out is where the demo tells what happens. Required.
	Out io.Writer
	// Terminal says that Out is one, so that progress can be drawn in place.
	Terminal bool
	// Query is searched for at the end. Optional.
	Query string
}

// tenant is whose documents they are.
const tenant = "demo"

// demo is one run.
type demo struct {
	Options
	client    *api.ClientWithResponses
	workspace docpipeline.Workspace
}

// document is one document on its way.
type document struct {
	name  string
	jobID string
	state api.JobState
	step  string
}

// Run runs the demo to its end. A second run on the same folders goes on with
// the jobs of the first. It returns an error if a job did not succeed.
func Run(ctx context.Context, o Options) error {
	d, err := prepare(o)
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
	runErr := d.follow(working, names)
	stop()
	return errors.Join(runErr, group.Wait())
}

// prepare makes the folders absolute, since the services only know URIs.
func prepare(o Options) (*demo, error) {
	documents, err := filepath.Abs(o.DocumentsDir)
	if err != nil {
		return nil, fmt.Errorf("documents: %w", err)
	}
	work, err := filepath.Abs(o.WorkDir)
	if err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}
	client, err := api.NewClientWithResponses(o.BaseURL, api.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", o.BaseURL, err)
	}
	return &demo{
		Options: o, client: client, workspace: docpipeline.Workspace{Documents: documents, Work: work},
	}, nil
}

// documents lists the documents by name.
func (d *demo) documents() ([]string, error) {
	entries, err := os.ReadDir(d.workspace.Documents)
	if err != nil {
		return nil, fmt.Errorf("documents: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if ending := strings.ToLower(filepath.Ext(entry.Name())); ending == ".txt" || ending == ".html" {
			names = append(names, entry.Name())
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("documents: no .txt or .html file in %s", d.DocumentsDir)
	}
	return names, nil
}

// serve runs one platform service.
func (d *demo) serve(ctx context.Context, name string, service docpipeline.Service) error {
	w, err := worker.New(worker.Config{
		Client: d.client, Owner: "demo-" + name, Services: []string{name}, Handle: service,
		Permanent: func(err error) bool { return errors.Is(err, docpipeline.ErrPermanent) },
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// follow submits the documents and watches them to their end.
func (d *demo) follow(ctx context.Context, names []string) error {
	documents := make([]*document, len(names))
	for i, name := range names {
		var err error
		if documents[i], err = d.submit(ctx, name); err != nil {
			return err
		}
	}
	if err := d.watch(ctx, documents); err != nil {
		return err
	}
	return d.tell(documents)
}

// submit sends the command of one document. Its key is the same in each run,
// so that the server answers a second one with the first one's job.
func (d *demo) submit(ctx context.Context, name string) (*document, error) {
	input, err := json.Marshal(docpipeline.FileRef(filepath.Join(d.workspace.Documents, name)))
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", name, err)
	}
	output, err := json.Marshal(docpipeline.FileRef(d.workspace.OutputPath(name)))
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", name, err)
	}
	response, err := d.client.SubmitCommandWithResponse(ctx, nil, api.Command{
		TenantID: tenant, RequestType: "doc.ingest", SchemaVersion: "1", InputRef: input, OutputRef: output,
		Payload: json.RawMessage(`{"language":"en"}`), IdempotencyKey: "demo-" + name,
	})
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", name, err)
	}
	if response.JSON202 == nil {
		return nil, fmt.Errorf("submit %s: the server answered %d: %s", name, response.StatusCode(), response.Body)
	}
	return &document{name: name, jobID: response.JSON202.JobID, state: response.JSON202.State}, nil
}

// watch polls the jobs until all are terminal, and shows each change.
func (d *demo) watch(ctx context.Context, documents []*document) error {
	show := newProgress(d.Out, d.Terminal, documents)
	defer show.end()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		open := 0
		for _, doc := range documents {
			if terminal(doc.state) {
				continue
			}
			if err := d.look(ctx, doc); err != nil {
				return err
			}
			show.update(doc)
			if !terminal(doc.state) {
				open++
			}
		}
		if open == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("stopped with %d jobs open; run the demo again to go on: %w", open, context.Cause(ctx))
		}
	}
}

// look reads one job.
func (d *demo) look(ctx context.Context, doc *document) error {
	response, err := d.client.GetJobWithResponse(ctx, doc.jobID, nil)
	if err != nil {
		return fmt.Errorf("look at %s: %w", doc.name, err)
	}
	if response.JSON200 == nil {
		return fmt.Errorf("look at %s: the server answered %d", doc.name, response.StatusCode())
	}
	doc.state, doc.step = response.JSON200.State, response.JSON200.CurrentStepID
	return nil
}

// tell says where everything is, and searches the index.
func (d *demo) tell(documents []*document) error {
	failed := slices.DeleteFunc(slices.Clone(documents), func(doc *document) bool {
		return doc.state == api.JobStateSucceeded
	})
	fmt.Fprintf(d.Out, "\n%d of %d documents ingested\n", len(documents)-len(failed), len(documents))
	fmt.Fprintf(d.Out, "  outputs  %s\n  index    %s\n  jobs     %s/v1/jobs/%s (and %d more)\n",
		filepath.Join(d.workspace.Work, "output"), d.workspace.IndexDir(), d.BaseURL, documents[0].jobID, len(documents)-1)
	if len(failed) > 0 {
		return fmt.Errorf("%d jobs did not succeed, the first is %s: %s", len(failed), failed[0].jobID, failed[0].state)
	}
	query := d.Query
	if query == "" {
		query = "a lamp that ships see at night from the sea"
	}
	hits, err := docpipeline.Search(d.workspace.IndexDir(), query, 3)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nsearch: %q\n", query)
	for i, hit := range hits {
		fmt.Fprintf(d.Out, "  %d. %.2f  %s (%s)\n           %s\n", i+1, hit.Score, hit.Title, hit.Name, hit.Snippet)
	}
	return nil
}
