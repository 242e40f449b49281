// What Lucius needs on Azure: a storage account with its tables, a namespace of
// Service Bus with a topic for each lane, and the roles of the identity that the
// replicas run under. `lucius azure check` holds the result against what the
// program expects; a test compares names and windows here with its defaults.
targetScope = 'resourceGroup'

@description('Region of everything.')
param location string = resourceGroup().location

@description('Name of the storage account: 3 to 24 lower-case letters and digits.')
@minLength(3)
@maxLength(24)
param storageName string

@description('Name of the Service Bus namespace.')
param namespaceName string

@description('Object id of the managed identity of the replicas.')
param principalId string

@description('Premium isolates throughput and takes messages above 256 KiB; Standard is billed by operation.')
@allowed(['Standard', 'Premium'])
param busTier string = 'Standard'

@description('Messaging units of a Premium namespace.')
param messagingUnits int = 1

@description('LUCIUS_SERVICEBUS_LANES. It cannot be lowered while jobs are in flight.')
@minValue(1)
@maxValue(1024)
param lanes int = 16

@description('The services of the protocol files. Each gets a subscription on every lane, with only its own directives.')
param services array

@description('LUCIUS_SERVICEBUS_REPLIES: whether replies come by topics as well.')
param replies bool = false

@description('Redundancy of the storage account.')
@allowed(['Standard_LRS', 'Standard_ZRS', 'Standard_GRS'])
param redundancy string = 'Standard_ZRS'

var topicPrefix = 'global-bus-p'
var replyPrefix = 'global-bus-replies-p'
var replySubscription = 'lucius-invoker'

// Both layouts: `ledger` uses luciusledger, `table` the three of Phase 1 and
// luciussteps. A table that stays empty costs nothing.
var tables = [
  'luciusledger'
  'luciussteps'
  'luciusjobs'
  'luciusoutbox'
  'luciusevents'
  'jobidempotency'
  'luciusjobindex'
  'luciusinflight'
  'luciusschedule'
  'luciusqueue'
]

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: storageName
  location: location
  kind: 'StorageV2'
  sku: { name: redundancy }
  properties: {
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    allowBlobPublicAccess: false
    // The replicas use their identity. A connection string would need this.
    allowSharedKeyAccess: false
  }
}

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2023-05-01' = {
  parent: storage
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2023-05-01' = [for name in tables: {
  parent: tableService
  name: name
}]

resource bus 'Microsoft.ServiceBus/namespaces@2022-10-01-preview' = {
  name: namespaceName
  location: location
  sku: {
    name: busTier
    tier: busTier
    capacity: busTier == 'Premium' ? messagingUnits : null
  }
  properties: {
    minimumTlsVersion: '1.2'
    disableLocalAuth: true
  }
}

// Directives. A message id names an attempt, so that the topic drops what a relay
// sends twice. Duplicate detection can only be enabled at creation.
resource lane 'Microsoft.ServiceBus/namespaces/topics@2022-10-01-preview' = [for n in range(0, lanes): {
  parent: bus
  name: '${topicPrefix}${n}'
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: 'PT10M'
  }
}]

// A topic without a subscription drops messages, so each service has its own.
resource worker 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2022-10-01-preview' = [for i in range(0, lanes * length(services)): {
  parent: lane[i / length(services)]
  name: services[i % length(services)]
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
  }
}]

// The rule $Default would let every directive through; it is replaced.
resource rule 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2022-10-01-preview' = [for i in range(0, lanes * length(services)): {
  parent: worker[i]
  name: '$Default'
  properties: {
    filterType: 'CorrelationFilter'
    correlationFilter: { properties: { service: services[i % length(services)] } }
  }
}]

resource reply 'Microsoft.ServiceBus/namespaces/topics@2022-10-01-preview' = [for n in range(0, replies ? lanes : 0): {
  parent: bus
  name: '${replyPrefix}${n}'
  properties: {}
}]

resource invoker 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2022-10-01-preview' = [for n in range(0, replies ? lanes : 0): {
  parent: reply[n]
  name: replySubscription
  properties: {
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
  }
}]

// Storage Table Data Contributor, Service Bus Data Sender and Receiver: what the
// replicas do. Checking and provisioning topics takes Service Bus Data Owner.
var tableContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
var busSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var busReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'

resource mayStore 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, principalId, tableContributor)
  scope: storage
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableContributor)
  }
}

resource maySend 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in [busSender, busReceiver]: {
  name: guid(bus.id, principalId, role)
  scope: bus
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
  }
}]

@description('LUCIUS_TABLE_ENDPOINT')
output tableEndpoint string = storage.properties.primaryEndpoints.table

@description('LUCIUS_SERVICEBUS_NAMESPACE')
output namespace string = '${bus.name}.servicebus.windows.net'
