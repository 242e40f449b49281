package lucius_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// extract is the payload of a step, and extracted its result.
type extract struct {
	Words int `json:"words"`
	Pages []struct {
		Number int `json:"number"`
	} `json:"pages"`
	Since *time.Time
}

type extracted struct {
	URI   string `json:"uri"`
	Words int    `json:"words"`
}

// A payload that is not what the handler takes fails the step for good, and names the field.
func TestATypedHandlerGetsItsPayload(t *testing.T) {
	t.Parallel()
	w := lucius.NewWorker(lucius.WorkerConfig{})
	lucius.Handle(w, "EXTRACT", func(_ context.Context, task *lucius.Task, payload extract) (extracted, error) {
		if payload.Words > 100 {
			return extracted{}, errors.New("too many words")
		}
		return extracted{URI: task.InputRef.URI() + ".txt", Words: payload.Words}, nil
	})
	lucius.Handle(w, "NOTHING", func(context.Context, *lucius.Task, struct{}) (*extracted, error) { return nil, nil })
	for _, test := range []struct{ stepType, payload, result, failure string }{
		{"EXTRACT", `{"words":3,"other":true}`, `{"uri":"s3://b/in.txt","words":3}`, ""},
		{"EXTRACT", `{"words":101}`, "", "work_failed, retried: too many words"},
		{"EXTRACT", `{"words":"three"}`, "", "payload_invalid: /words: must be int, is string"},
		{"EXTRACT", `{"pages":[{"number":1},{"number":[]}]}`, "", "payload_invalid: /pages/number: must be int, is array"},
		{"EXTRACT", `[]`, "", "payload_invalid: must be object, is array"},
		{"EXTRACT", `{"since":"today"}`, "", `payload_invalid: the payload cannot be decoded: ` +
			`parsing time "today" as "2006-01-02T15:04:05Z07:00": cannot parse "today" as "2006"`},
		{"NOTHING", `{}`, "", ""},
	} {
		result, failure := w.Do(t.Context(), &lucius.Task{Directive: lucius.Directive{
			StepType: test.stepType, Payload: json.RawMessage(test.payload), InputRef: lucius.URI("s3://b/in"),
		}})
		got := ""
		if failure != nil {
			retried := map[bool]string{true: ", retried"}[failure.Retryable]
			got = fmt.Sprintf("%s%s: %s", failure.Code, retried, failure)
		}
		if string(result.Ref) != test.result || got != test.failure {
			t.Errorf("%s: %s, %q, want %s, %q", test.payload, result.Ref, got, test.result, test.failure)
		}
	}
}
