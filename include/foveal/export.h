/* Symbol visibility: everything is hidden unless marked FOVEAL_API. C and C++. */
#ifndef FOVEAL_EXPORT_H_
#define FOVEAL_EXPORT_H_

#if defined(FOVEAL_BUILDING_LIBRARY)
#define FOVEAL_API __attribute__((visibility("default")))
#else
#define FOVEAL_API
#endif

#endif /* FOVEAL_EXPORT_H_ */
