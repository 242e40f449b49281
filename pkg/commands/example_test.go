package commands_test

import (
	"fmt"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func ExampleDecode() {
	command, err := commands.Decode([]byte(`{
		"tenant_id": "tenant_a", "request_type": "doc.ingest", "schema_version": "1",
		"input_ref": {"uri": "s3://bucket/in.pdf"}, "output_ref": {"uri": "s3://bucket/out.json"},
		"payload": {"language": "en"}
	}`), commands.Headers{IdempotencyKey: `"import-42"`}, commands.Policy{AllowedRefs: []string{"s3"}})
	if err != nil {
		panic(err)
	}
	fmt.Println(command.RequestType, command.IdempotencyKey, string(command.Payload))
	// Output: doc.ingest import-42 {"language": "en"}
}

func ExampleDecode_refused() {
	_, err := commands.Decode([]byte(`{
		"tenant": "tenant_a", "request_type": "doc.ingest", "schema_version": 1,
		"input_ref": {"uri": "ftp://host/in.pdf"}, "output_ref": {"uri": "s3://bucket/out.json"},
		"payload": {}
	}`), commands.Headers{}, commands.Policy{AllowedRefs: []string{"s3"}})
	refusal := apierror.From(err)
	fmt.Println(refusal.Code)
	for _, violation := range refusal.Errors {
		fmt.Println(violation.Pointer, violation.Message)
	}
	// Output:
	// invalid_envelope
	// /tenant_id is required
	// /schema_version must be a string, not a number
	// /input_ref/uri has a scheme or prefix that is not allowed here
	// /tenant is not a field of a command
}
