// Workers on Azure Service Bus need its SDK: a module of their own keeps it from those
// that do not.
module github.com/lucius-project/lucius/sdk/go/servicebus

go 1.26.0

require (
	github.com/Azure/azure-sdk-for-go/sdk/azcore v1.23.3
	github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus v1.11.0
	github.com/Azure/go-amqp v1.7.0
	github.com/lucius-project/lucius/sdk/go v0.0.0
)

require (
	github.com/Azure/azure-sdk-for-go/sdk/internal v1.13.0 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

// Both are of one commit, always.
replace github.com/lucius-project/lucius/sdk/go => ..
