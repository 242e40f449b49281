// All that Lucius needs on Azure: a storage account with its tables, a namespace of
// Service Bus with a topic for each lane, the identity that the replicas run under,
// Container Apps that run them, the rights of Lucius and of the workers, diagnostics and
// alerts. `lucius azure check` holds the result against what the program expects; a test
// compares names and settings here with its own.
targetScope = 'resourceGroup'

@description('Region of everything.')
param location string = resourceGroup().location

@description('Beginning of the names of the identity, the apps, the workspace and the alerts.')
@minLength(2)
@maxLength(20)
param prefix string = 'lucius'

@description('Name of the storage account: 3 to 24 lower-case letters and digits.')
@minLength(3)
@maxLength(24)
param storageName string

@description('Redundancy of the storage account.')
@allowed(['Standard_LRS', 'Standard_ZRS', 'Standard_GRS'])
param redundancy string = 'Standard_ZRS'

@description('LUCIUS_STORAGE_BACKEND: ledger, or table for separate tables of jobs, steps, outbox rows and events. It cannot be changed once there are jobs.')
@allowed(['ledger', 'table'])
param layout string = 'ledger'

@description('Name of the Service Bus namespace.')
@minLength(6)
@maxLength(50)
param namespaceName string

@description('Premium isolates throughput and takes messages above 256 KiB; Standard is billed by operation.')
@allowed(['Standard', 'Premium'])
param busTier string = 'Standard'

@description('Messaging units of a Premium namespace.')
@allowed([1, 2, 4, 8, 16])
param messagingUnits int = 1

// Each lane is a nested deployment, of which a template may have 800, and with replies
// it is two topics, of which a messaging unit of Premium holds 1000.
@description('LUCIUS_SERVICEBUS_LANES. It cannot be lowered while jobs are in flight.')
@minValue(1)
@maxValue(500)
param lanes int = 16

@description('The services of the protocol files. Each gets a subscription on every lane, with only its own directives.')
@minLength(1)
param services string[]

@description('LUCIUS_SERVICEBUS_REPLIES: whether replies come by topics as well.')
param replies bool = false

@description('A worker: the object id of its identity, and the service whose directives it may read.')
type worker = {
  principalId: string
  service: string
}

@description('The workers. Each may receive from the subscriptions of its service and send to the reply topics, and nothing else.')
param workers worker[] = []

@description('Object id of the identity that runs `lucius azure check` and `provision`. Empty for none.')
param operatorPrincipalId string = ''

@description('Kind of the operator.')
@allowed(['User', 'Group', 'ServicePrincipal'])
param operatorType string = 'Group'

@description('Image of Lucius with the protocol files in /etc/lucius/protocols. Empty to run the replicas elsewhere.')
param image string = ''

@description('Name of an Azure Container Registry in this resource group that holds the image. Empty for a public one.')
param registryName string = ''

@description('Replicas of each app.')
@minValue(1)
@maxValue(30)
param replicas int = 2

@description('Whether the roles api, relay and sweeper run in apps of their own.')
param splitRoles bool = false

@description('Whether the API can be reached from outside the environment.')
param external bool = false

// Lucius listens on addresses other than loopback only if it knows its callers. So one
// of oidcIssuer and tokenFile is needed; without both the replicas refuse to start.
@description('LUCIUS_OIDC_ISSUER, such as https://login.microsoftonline.com/<tenant>/v2.0.')
param oidcIssuer string = ''

@description('LUCIUS_OIDC_AUDIENCE; needed with oidcIssuer.')
param oidcAudience string = ''

@description('Content of the file of LUCIUS_AUTH_FILE.')
@secure()
param tokenFile string = ''

@description('Further variables of the replicas, such as { LUCIUS_LEASE_DURATION: \'5m\' }.')
param settings object = {}

@description('Who gets the alerts by mail. Empty for no alerts.')
param alertEmails string[] = []

var topicPrefix = 'global-bus-p'
var replyPrefix = 'global-bus-replies-p'
var replySubscription = 'lucius-invoker'

// Both layouts: `ledger` uses luciusledger; `table` uses luciussteps, luciusjobs, luciusoutbox
// and luciusevents. A table that stays empty costs nothing.
var tables = [
  'luciusledger'
  'luciussteps'
  'luciusjobs'
  'luciusoutbox'
  'luciusevents'
  'jobidempotency'
  'luciusjobindex'
  'luciusschedule'
  'luciusqueue'
  'luciuscron'
]

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${prefix}-identity'
  location: location
}

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

// Service Bus refuses parallel changes of one namespace beyond a few, so the lanes are
// made in batches.
@batchSize(8)
module lane 'lane.bicep' = [for n in range(0, lanes): {
  name: '${prefix}-lane-${n}'
  params: {
    namespaceName: bus.name
    topicName: '${topicPrefix}${n}'
    replyTopicName: replies ? '${replyPrefix}${n}' : ''
    replySubscription: replySubscription
    services: services
    workers: workers
  }
}]

// Storage Table Data Contributor, Azure Service Bus Data Sender and Receiver: what the
// replicas do. Checking and provisioning topics takes Azure Service Bus Data Owner.
var tableContributor = '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
var busSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var busReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
var busOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'

resource mayStore 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, identity.id, tableContributor)
  scope: storage
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableContributor)
  }
}

resource maySend 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in [busSender, busReceiver]: {
  name: guid(bus.id, identity.id, role)
  scope: bus
  properties: {
    principalId: identity.properties.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
  }
}]

resource operatorMayStore 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(operatorPrincipalId)) {
  name: guid(storage.id, operatorPrincipalId, tableContributor)
  scope: storage
  properties: {
    principalId: operatorPrincipalId
    principalType: operatorType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableContributor)
  }
}

resource operatorMayManage 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(operatorPrincipalId)) {
  name: guid(bus.id, operatorPrincipalId, busOwner)
  scope: bus
  properties: {
    principalId: operatorPrincipalId
    principalType: operatorType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', busOwner)
  }
}

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: '${prefix}-logs'
  location: location
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
  }
}

// Metrics alone of the tables: their logs have a line for each request.
resource tableDiagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: prefix
  scope: tableService
  properties: {
    workspaceId: workspace.id
    metrics: [{ category: 'Transaction', enabled: true }]
  }
}

resource busDiagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: prefix
  scope: bus
  properties: {
    workspaceId: workspace.id
    logs: [{ category: 'OperationalLogs', enabled: true }]
    metrics: [{ category: 'AllMetrics', enabled: true }]
  }
}

module apps 'apps.bicep' = if (!empty(image)) {
  name: '${prefix}-apps'
  params: {
    location: location
    prefix: prefix
    workspaceName: workspace.name
    identityName: identity.name
    image: image
    registryName: registryName
    replicas: replicas
    splitRoles: splitRoles
    external: external
    tokenFile: tokenFile
    variables: union(empty(oidcIssuer) ? {} : {
      LUCIUS_OIDC_ISSUER: oidcIssuer
      LUCIUS_OIDC_AUDIENCE: oidcAudience
    }, {
      LUCIUS_STORAGE_BACKEND: layout
      LUCIUS_TABLE_ENDPOINT: storage.properties.primaryEndpoints.table
      LUCIUS_BUS: 'servicebus'
      LUCIUS_SERVICEBUS_NAMESPACE: '${bus.name}.servicebus.windows.net'
      LUCIUS_SERVICEBUS_LANES: string(lanes)
      LUCIUS_SERVICEBUS_REPLIES: replies ? 'true' : 'false'
    }, settings)
  }
  dependsOn: [table, lane, mayStore, maySend]
}

module alerts 'alerts.bicep' = if (!empty(alertEmails)) {
  name: '${prefix}-alerts'
  params: {
    location: location
    prefix: prefix
    emails: alertEmails
    busId: bus.id
    replyTopics: [for n in range(0, replies ? lanes : 0): '${replyPrefix}${n}']
    tableServiceId: tableService.id
    workspaceId: workspace.id
    withApps: !empty(image)
  }
  dependsOn: [apps]
}

@description('LUCIUS_TABLE_ENDPOINT')
output tableEndpoint string = storage.properties.primaryEndpoints.table

@description('LUCIUS_SERVICEBUS_NAMESPACE')
output namespace string = '${bus.name}.servicebus.windows.net'

@description('AZURE_CLIENT_ID of replicas that run elsewhere under this identity.')
output clientId string = identity.properties.clientId

@description('Address of the API, if the replicas run here.')
output api string = empty(image) ? '' : apps.outputs.api
