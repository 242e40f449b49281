package statemachine_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// TestStartScope_ID: an id names its scope, whatever the values.
func TestStartScope_ID(t *testing.T) {
	t.Parallel()
	for id, scope := range map[string]statemachine.StartScope{
		"service:ocr":                         {Service: "ocr"},
		"service:ocr,step_type:OCR":           {Service: "ocr", StepType: "OCR"},
		"service:ocr,tenant:a":                {Service: "ocr", TenantID: "a"},
		"service:ocr,step_type:OCR,tenant:a":  {Service: "ocr", StepType: "OCR", TenantID: "a"},
		"service:a~2Cb~2Fc,tenant:~7E~25~20x": {Service: "a,b/c", TenantID: "~% x"},
	} {
		if got := scope.ID(); got != id {
			t.Errorf("the id of %+v is %q, want %q", scope, got, id)
		}
		if got, err := statemachine.ParseStartScope(id); err != nil || got != scope {
			t.Errorf("ParseStartScope(%q) = %+v, %v", id, got, err)
		}
	}
	for _, id := range []string{"", "ocr", "service:", "tenant:a", "step_type:OCR,service:ocr", "service:ocr,service:b", "service:ocr,lane:1", "service:~zz"} {
		if got, err := statemachine.ParseStartScope(id); err == nil {
			t.Errorf("ParseStartScope(%q) = %+v, want an error", id, got)
		}
	}
}
