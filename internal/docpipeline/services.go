package docpipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/lucius-project/lucius/api"
)

// Service does one step's work and returns the reference of what it made.
type Service func(ctx context.Context, directive api.Directive) (json.RawMessage, error)

// Services are the three services by name.
func (w Workspace) Services() map[string]Service {
	return map[string]Service{"extract": w.extract, "embed": w.embed, "index": w.index}
}

func (w Workspace) extract(_ context.Context, d api.Directive) (json.RawMessage, error) {
	from, err := path(d.InputRef, w.Documents)
	if err != nil {
		return nil, err
	}
	var payload struct {
		Language string `json:"language"`
	}
	if err := json.Unmarshal(d.Payload, &payload); err != nil {
		return nil, fmt.Errorf("%w: payload: %w", ErrPermanent, err)
	}
	to := filepath.Join(w.Work, "text", stem(from)+".json")
	return reference(to, extractFile(from, to, payload.Language))
}

func (w Workspace) embed(_ context.Context, d api.Directive) (json.RawMessage, error) {
	from, err := path(d.InputRef, w.Work)
	if err != nil {
		return nil, err
	}
	var text Text
	if err := readJSON(from, &text); err != nil {
		return nil, err
	}
	to := filepath.Join(w.Work, "vectors", stem(from)+".json")
	return reference(to, writeJSON(to, Embed(text)))
}

func (w Workspace) index(_ context.Context, d api.Directive) (json.RawMessage, error) {
	from, err := path(d.InputRef, w.Work)
	if err != nil {
		return nil, err
	}
	to, err := path(d.OutputRef, w.Work)
	if err != nil {
		return nil, err
	}
	var doc Embedded
	if err := readJSON(from, &doc); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(w.IndexDir(), stem(from)+".json"), doc); err != nil {
		return nil, err
	}
	return reference(to, writeJSON(to, result(&doc)))
}

// reference is the reference of a file that was written.
func reference(path string, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	ref, err := json.Marshal(FileRef(path))
	if err != nil {
		return nil, fmt.Errorf("make a reference: %w", err)
	}
	return ref, nil
}
