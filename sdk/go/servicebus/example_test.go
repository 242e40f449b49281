package servicebus_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	lucius "github.com/lucius-project/lucius/sdk/go"

	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

// A worker of the service ocr, of the namespace that a connection string names.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := lucius.NewWorker(lucius.WorkerConfig{})
	w.Handle("OCR", func(_ context.Context, task *lucius.Task) (any, error) {
		return lucius.URI(task.InputRef.URI() + ".txt"), nil
	})
	err := servicebus.Run(ctx, w, servicebus.Config{Connection: os.Getenv("SERVICEBUS_CONNECTION"), Service: "ocr"})
	fmt.Println(err)
	// Output: lucius servicebus: Connection is required, unless Namespace is set
}

// A handler that needs much memory is limited over all lanes.
func ExampleConfig_parallel() {
	room := make(chan struct{}, 8)
	w := lucius.NewWorker(lucius.WorkerConfig{})
	w.Use(func(next lucius.Handler) lucius.Handler {
		return func(ctx context.Context, task *lucius.Task) (any, error) {
			select {
			case room <- struct{}{}:
				defer func() { <-room }()
				return next(ctx, task)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	w.Handle("OCR", func(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://bucket/text"), nil })
	result, _ := w.Do(context.Background(), &lucius.Task{Directive: lucius.Directive{StepType: "OCR"}})
	fmt.Println(result.Ref.URI())
	// Output: s3://bucket/text
}
