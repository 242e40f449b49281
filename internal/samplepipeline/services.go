package samplepipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// Services returns the handlers of the three services, by their names in protocols. Each
// returns the reference of the file that it wrote. A repetition writes the same bytes.
// An error that is [ErrPermanent] is final.
func (w Workspace) Services() map[string]lucius.Handler {
	return map[string]lucius.Handler{"extract": handler(w.extract), "embed": handler(w.embed), "index": handler(w.index)}
}

// handler returns the handler of a service.
func handler(service func(*lucius.Task) (lucius.Reference, error)) lucius.Handler {
	return func(_ context.Context, task *lucius.Task) (any, error) {
		ref, err := service(task)
		if errors.Is(err, ErrPermanent) {
			err = lucius.Final("cannot_be_done", "%w", err)
		}
		return ref, err
	}
}

// extract reads a document and writes its [Text].
func (w Workspace) extract(d *lucius.Task) (lucius.Reference, error) {
	name, err := within(w.Documents, d.InputRef)
	if err != nil {
		return nil, fmt.Errorf("input_ref: %w", err)
	}
	var payload struct {
		Language string `json:"language"`
	}
	if err := json.Unmarshal(d.Payload, &payload); err != nil {
		return nil, fmt.Errorf("payload: %w: %w", ErrPermanent, err)
	}
	data, err := readFile(w.Documents, name)
	if err != nil {
		return nil, fmt.Errorf("input_ref: %w", err)
	}
	text, err := Extract(filepath.ToSlash(name), data, payload.Language)
	if err != nil {
		return nil, err
	}
	return w.write(filepath.Join(textDir, fileName(name)), text)
}

// embed reads a [Text] and writes its [Embedded].
func (w Workspace) embed(d *lucius.Task) (lucius.Reference, error) {
	var text Text
	if err := w.read(d.InputRef, &text); err != nil {
		return nil, fmt.Errorf("input_ref: %w", err)
	}
	return w.write(filepath.Join(vectorsDir, fileName(text.Name)), Embed(text))
}

// index reads an [Embedded], puts it into the index, and writes its [Result].
// The result comes last, so a document with a result can be found.
func (w Workspace) index(d *lucius.Task) (lucius.Reference, error) {
	to, err := within(w.Work, d.OutputRef)
	if err != nil {
		return nil, fmt.Errorf("output_ref: %w", err)
	}
	var doc Embedded
	if err := w.read(d.InputRef, &doc); err != nil {
		return nil, fmt.Errorf("input_ref: %w", err)
	}
	if _, err := w.write(filepath.Join(indexDir, fileName(doc.Name)), doc); err != nil {
		return nil, err
	}
	return w.write(to, Summarize(&doc))
}

// read reads a file that another step wrote.
func (w Workspace) read(ref lucius.Reference, value any) error {
	name, err := within(w.Work, ref)
	if err != nil {
		return err
	}
	return readJSON(w.Work, name, value)
}

// write writes a file under Work and returns its reference.
func (w Workspace) write(name string, value any) (lucius.Reference, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", name, err)
	}
	if err := WriteFile(w.Work, name, append(data, '\n')); err != nil {
		return nil, err
	}
	return FileRef(filepath.Join(w.Work, name)), nil
}
