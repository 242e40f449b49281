package luciustest_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/sdk/go/luciustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const protocol = `
protocol_id: scan_v1
request_types: [doc.scan]
steps:
  - {step_id: scan, step_type: SCAN, service: scanner}
  - {step_id: ocr, step_type: OCR, service: scanner, input: previous}
`

var command = lucius.Command{
	TenantID: "tenant_a", RequestType: "doc.scan", SchemaVersion: "1",
	InputRef: lucius.URI("s3://b/in"), OutputRef: lucius.URI("s3://b/out"),
}

// worker returns a worker whose handler of OCR is the given one.
func worker(client *lucius.Client, ocr lucius.Handler) *lucius.Worker {
	w := lucius.NewWorker(lucius.WorkerConfig{Client: client, Service: "scanner", Log: slog.New(slog.DiscardHandler)})
	w.Handle("SCAN", func(_ context.Context, task *lucius.Task) (any, error) {
		return lucius.URI(task.InputRef.URI() + ".png"), nil
	})
	w.Handle("OCR", ocr)
	return w
}

// The delays of a failing step, the leases and the heartbeats are those of a real server,
// and take no time.
func TestAStepFailsForAWhileAndOutlastsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		server := luciustest.Start(t, protocol)
		server.Run(worker(server.Client(), func(ctx context.Context, task *lucius.Task) (any, error) {
			if task.AttemptNo < 3 {
				return nil, errors.New("the service is down")
			}
			timer := time.NewTimer(20 * time.Minute)
			defer timer.Stop()
			select {
			case <-timer.C:
				return lucius.URI(task.InputRef.URI() + ".txt"), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}))
		job := server.Do(command)
		if job.Err() != nil || job.FinalOutput.URI() != "s3://b/in.png.txt" || job.AttemptsTotal != 4 {
			t.Errorf("%s after %d attempts: %s, %v", job.State, job.AttemptsTotal, job.FinalOutput, job.Err())
		}
		if took := time.Since(begun); took < 20*time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAJobThatIsWatchedAndCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := luciustest.Start(t, protocol)
		client := server.Client()
		server.Run(worker(client, func(ctx context.Context, _ *lucius.Task) (any, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}))
		accepted, err := client.Submit(t.Context(), command)
		if err != nil {
			t.Fatal(err)
		}
		var last lucius.EventType
		for event, err := range client.Watch(t.Context(), accepted.JobID) {
			if err != nil {
				t.Fatal(err)
			}
			last = event.Type
			if event.ObjectID == "ocr" && event.To == string(lucius.StepStateInProgress) {
				if _, err := client.Cancel(t.Context(), accepted.JobID, "not needed"); err != nil {
					t.Error(err)
				}
			}
		}
		if last != lucius.EventTypeJobCancelled {
			t.Errorf("the last event is %s", last)
		}
	})
}

func TestWithoutABubbleItWorksInRealTime(t *testing.T) {
	t.Parallel()
	ocr := func(context.Context, *lucius.Task) (any, error) {
		return nil, lucius.Final("UNREADABLE", "the page is blank")
	}
	server := luciustest.Start(t, protocol)
	server.Run(worker(server.Client(), ocr))
	job := server.Do(command)
	failed, ok := errors.AsType[*lucius.JobError](job.Err())
	if !ok || failed.Code != "UNREADABLE" {
		t.Errorf("%s: %v", job.State, job.Err())
	}
}
